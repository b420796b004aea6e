// Keys before the rotary embedding, for any codec.
//
// The embedding turns every pair of a key's dimensions by an angle that grows with the token's place. What was
// near constant along a document, or lay in few directions, afterwards is neither. So a codec may be given keys
// that are turned back, and what it decodes is turned forward again: rounding of the turned keys to the cache's
// 16-bit type aside, nothing is lost, and the codec knows nothing of it.
//
// Keys are turned back by their index in the document, not by the positions that a file notes: of any token there
// is an index, known to whoever decodes, and the embedding turns by differences only. Where documents begin at
// position 0 both are the same.
//
// Products with keys are taken of keys that are decoded and turned: to turn the query instead would take one query
// for each token.
#pragma once

#include <memory>
#include <optional>

#include "lib/codec/codec.hpp"
#include "lib/codec/rope_choice.hpp"

namespace kvcodec {

/// What is to be done with keys: as asked; where nothing was asked as the book was trained, and where there is
/// none as the codec would have it, if the cache's rotary embedding is known. Throws Error(usage) if a book was
/// trained on other keys than are asked for, Error(bad_input) if what the book says is not a choice.
RopeChoice choose_rope(const CodecEntry& entry, std::optional<RopeChoice> asked, const CodecContext& context);

/// Throws Error(usage) unless keys can be turned back.
void check_can_undo(const KeyRope& rope);

/// The codec for encoding with these options, keys turned back or not. Throws what entry.make throws, and
/// Error(usage) for a cache of several shapes where the codec takes one, and where keys cannot be turned back: as the codec needs them turned, or as it is not known how they
/// were.
std::unique_ptr<Codec> make_codec(const CodecEntry& entry, const Options& options,
                                  const CodecContext& context, RopeChoice rope);

/// A codec that stores what `inner` makes of keys turned back; values go through untouched. Its parameters are
/// those of inner and "rope". Throws Error(usage) as make_codec does.
std::unique_ptr<Codec> undo_rope(std::unique_ptr<Codec> inner, const CodecContext& context);

}  // namespace kvcodec
