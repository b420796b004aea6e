// Wrappers for any codec: keys turned back, exact first tokens, channels centred.
//
// The embedding turns every pair of a key's dimensions by an angle that grows with the token's position. Dimensions that were nearly
// constant along a document, or few directions, then vary. So a codec may get keys that are turned back, and its decoded keys are
// turned forward again: except for rounding to the cache's 16-bit type, nothing is lost, and the codec is not affected.
//
// Keys are turned back by their index in the document, not by the positions that a file notes: the decoder knows the
// index of any token, and turns by it again, so that both turns cancel. If documents begin at position 0 both are
// the same; else keys are coded with a constant turn in each pair of dimensions.
//
// Products with keys use decoded and turned keys: turning the query instead would take one query for each token.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "lib/codec/book.hpp"
#include "lib/codec/codec.hpp"
#include "lib/core/options.hpp"
#include "lib/core/record.hpp"

namespace kvcodec {

/// Chooses keys as the cache has them, or keys turned back, for the codec. With a book of keys: as the book was trained, except that keys
/// from before the embedding are kept as they are. Without one, or with a program: as asked, else turned back if the
/// codec prefers it (CodecEntry::before_rope) and the cache's keys are known to be turned. Throws Error(usage) if a book was trained on other
/// keys than asked for, Error(bad_input) if its record holds no valid choice.
RopeChoice choose_rope(const CodecEntry& entry, std::optional<RopeChoice> asked, const CodecContext& context);

/// Throws Error(usage) unless keys can be turned back.
void check_can_undo(const KeyRope& rope);

/// Makes the codec for encoding with these options, for keys turned back or as they are. Throws what entry.make throws, and Error(usage)
/// for weights, if the codec accepts none, and for keys that cannot be turned back: the codec needs them
/// turned, or it is not known how they were turned.
std::unique_ptr<Codec> make_codec(const CodecEntry& entry, const Options& options,
                                  const CodecContext& context, RopeChoice rope);

/// A codec that gives `inner` keys turned back; values do not change. Its parameters are those of inner and
/// "rope". Throws Error(usage) as make_codec does.
std::unique_ptr<Codec> undo_rope(std::unique_ptr<Codec> inner, const CodecContext& context);

// First tokens kept exactly, for any codec. Most attention of many heads lies on a text's first token ("attention sink": Xiao et al.,
// "Efficient Streaming Language Models with Attention Sinks", 2024), and its keys and values are unlike all others: an error there costs
// more than anywhere else. So a stream of its own holds the first tokens in 16 bits. In place of each of them the inner codec gets a copy
// of the first token behind them: its blocks then begin and end where they would without a sink, and all later tokens keep their indices.
// Until that token comes, the inner codec gets nothing.
//   sink  bf16|f16 [min(T, sink)][layers][heads][d]

/// The name of the stream of first tokens, and of the option and parameter that gives their number.
inline constexpr std::string_view kSink = "sink";

/// The option `sink` of a codec that leaves its first tokens to keep_first_tokens(); its parameters() name it.
inline OptionField sink_field(int64_t& sink) {
  return {.name = std::string(kSink),
          .help = "first tokens of a document kept exactly",
          .target = &sink,
          .min = 0,
          .max = 1 << 24};
}

/// The best value of that option: one token takes a small fraction of a document's bits, and its errors would cost a
/// model more than those of all others together.
inline constexpr int64_t kBestSink = 1;

/// A codec that keeps so many tokens, in that 16-bit type, and gives the others to `inner`; with 0, inner itself.
/// Parameters are those of inner, which has no stream of that name and no index.
std::unique_ptr<Codec> keep_first_tokens(std::unique_ptr<Codec> inner, int64_t sink, DType storage);

/// The stream of first tokens, of codes that have it.
StreamSpec sink_stream(const GroupShape& shape, DType storage);

// Channels centred, for any codec. In some models (Qwen2.5, whose projections of keys have biases) a channel's values lie far from 0 and
// close together: codecs that share a step or rotation over channels then spend bits on the means. So the means of a file's first tokens
// are kept, and the inner codec gets what is left of the values; exact first tokens stay as they are. Before the rotary embedding the means of
// keys are the same everywhere in a document, so that this comes inside undo_rope().
//   means  f32 [layers][heads][d], shared

/// The sides that are centred.
enum class Centered : uint8_t { automatic, none, keys, both };
constexpr auto names_of(Centered) {
  return std::to_array<std::string_view>({"auto", "none", "keys", "both"});
}

/// The option `center`; its codec's parameters() name what was chosen.
inline OptionField center_field(Centered& center) {
  return {
      .name = "center",
      .help =
          "sides whose channel means are subtracted, and kept in the file, before coding; auto: keys, where "
          "that gains",
      .target = &center};
}

/// A codec that gives `inner` the rows of those sides without their channels' means; with Centered::none, inner itself. Parameters are those of
/// inner, which surveys the whole file, if anything, and has no stream of that name and no index.
std::unique_ptr<Codec> center_channels(std::unique_ptr<Codec> inner, Centered center, DType storage);

/// The number of first tokens kept, by the parameters of codes. Throws Error(bad_input) for an invalid number.
int64_t sink_in(const Record& parameters);

/// Copies the first tokens of a document from codes to codes, both with the same stream of them.
inline void copy_first_tokens(const StreamSpec& stream, const StreamReader& document, StreamStore& out) {
  const uint64_t rows = document.rows(stream.name);
  out.append_values<std::byte>(stream.name,
                               document.read<std::byte>(stream.name, 0, rows, stream.row_bytes()));
}

}  // namespace kvcodec
