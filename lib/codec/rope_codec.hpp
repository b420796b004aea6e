// Keys before the rotary embedding, for any codec.
//
// The embedding turns every pair of a key's dimensions by an angle that grows with the token's position. What was
// near constant along a document, or lay in few directions, afterwards is neither. So a codec may be given keys
// that are turned back, and what it decodes is turned forward again: rounding of the turned keys to the cache's
// 16-bit type aside, nothing is lost, and the codec knows nothing of it.
//
// Keys are turned back by their index in the document, not by the positions that a file notes: whoever decodes knows
// the index of any token, and turns by it again, so that both turns cancel. Where documents begin at position 0 both
// are the same; elsewhere keys are coded with a constant turn in each pair of dimensions.
//
// Products with keys are taken of keys that are decoded and turned: to turn the query instead would take one query
// for each token.
#pragma once

#include <memory>
#include <optional>

#include "lib/codec/codec.hpp"
#include "lib/codec/rope_choice.hpp"

namespace kvcodec {

/// Whether the codec gets keys as the cache has them, or turned back. With a book of keys: as the book was trained,
/// except that keys from before the embedding are kept as they are. Without one: as asked, else turned
/// back if the codec prefers it (CodecEntry::before_rope) and the cache's keys are known to be turned. Throws
/// Error(usage) if a book was trained on other keys than are asked for, Error(bad_input) if its record holds
/// no valid choice.
RopeChoice choose_rope(const CodecEntry& entry, std::optional<RopeChoice> asked, const CodecContext& context);

/// Throws Error(usage) unless keys can be turned back.
void check_can_undo(const KeyRope& rope);

/// Makes the codec for encoding with these options, for keys turned back or as they are. Throws what
/// entry.make throws, and Error(usage) for layers of different shapes or for weights, if the codec accepts
/// none, and for keys that cannot be turned back: the codec needs them turned, or nobody knows how they were
/// turned.
std::unique_ptr<Codec> make_codec(const CodecEntry& entry, const Options& options,
                                  const CodecContext& context, RopeChoice rope);

/// A codec that stores what `inner` makes of keys turned back; values go through untouched. Its parameters are
/// those of inner and "rope". Throws Error(usage) as make_codec does.
std::unique_ptr<Codec> undo_rope(std::unique_ptr<Codec> inner, const CodecContext& context);

}  // namespace kvcodec
