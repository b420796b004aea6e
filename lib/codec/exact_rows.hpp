// Tokens kept exactly: rows stored as their original 16-bit floats. For the codec `none`, for tails that
// wait uncompressed and for exempt tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "lib/codec/stream.hpp"
#include "lib/core/aligned.hpp"

namespace kvcodec {

/// The shape of one token's row as streams show it: [heads, head_dim], with the layers in front where there
/// are several, and with the two sides in front of all where a row has both.
std::vector<uint64_t> row_shape_of(const GroupShape& shape);

/// A stream for rows kept exactly in `storage`.
inline StreamSpec exact_stream(std::string_view name, const GroupShape& shape, DType storage,
                               Category category = Category::exempt) {
  return {std::string(name), storage, row_shape_of(shape), category};
}

/// Throws Error(usage) unless the context has heads, a head dimension and a 16-bit storage type.
void check_context(const CodecContext& context);

/// CodecEntry::make of a codec that is made from its options and a context that check_context passes.
template <class CodecOptions, class Made>
std::unique_ptr<Codec> make_checked(const Options& options, const CodecContext& context) {
  check_context(context);
  return std::make_unique<Made>(dynamic_cast<const CodecOptions&>(options), context);
}

/// The same, for a codec that keeps every bit, also of 32-bit floats.
template <class CodecOptions, class Made>
std::unique_ptr<Codec> make_exact(const Options& options, const CodecContext& context) {
  CodecContext checked = context;
  if (context.storage == DType::f32) checked.storage = DType::bf16;
  check_context(checked);
  return std::make_unique<Made>(dynamic_cast<const CodecOptions&>(options), context);
}

/// The same as make_checked, for a codec that leaves its first tokens to keep_first_tokens().
template <class CodecOptions, class Made>
std::unique_ptr<Codec> make_behind_sink(const Options& options, const CodecContext& context) {
  const int64_t sink = dynamic_cast<const CodecOptions&>(options).sink;
  return keep_first_tokens(make_checked<CodecOptions, Made>(options, context), sink, context.storage);
}

/// The same for a codec that also leaves its option `center` to center_channels(). make: one of the functions above.
template <class CodecOptions, auto make>
std::unique_ptr<Codec> make_centered(const Options& options, const CodecContext& context) {
  CodecOptions own = dynamic_cast<const CodecOptions&>(options);
  if (own.center == Centered::automatic)
    own.center = !context.recorded && own.gains_by_center() ? Centered::keys : Centered::none;
  return center_channels(make(own, context), own.center, context.storage);
}

/// Throws Error(failed) unless rows handed to a codec have the width of its shape.
inline void check_width(const GroupShape& shape, size_t columns) {
  if (columns != shape.width())
    throw failed("rows of {} values; {} layers of {} heads of {} dimensions make {}", columns,
                 shape.layers.size(), shape.heads(), shape.head_dim(), shape.width());
}

/// Rows (n, width) rounded to `storage`, row after row; values from 16-bit sources do not change.
/// Throws Error(bad_input) naming the first value outside its range.
UnsetVector<uint16_t> to_storage(DType storage, MatrixView<const float> rows);

/// The same, to `out`, which has as many values.
void store_rows(DType storage, MatrixView<const float> rows, std::span<uint16_t> out);

/// Rounds one row to `out`, which has as many values. index: the row's number, for messages. Throws as to_storage.
void store_row(DType storage, std::span<const float> row, size_t index, std::span<uint16_t> out);

/// Reads rows [first, first + out.rows()) of a stream made by exact_stream into out: (n, width).
/// Throws Error(bad_input) if they are not all there or hold values that are not finite.
void read_exact(std::string_view stream, DType storage, const StreamReader& document, uint64_t first,
                MatrixView<float> out);

/// The number of tokens in [first, first + count) that lie before `end`.
inline size_t count_before(uint64_t end, uint64_t first, size_t count) {
  return first < end ? static_cast<size_t>(std::min<uint64_t>(end - first, count)) : 0;
}

// A tail: the newest tokens of a document wait exactly in the stream `tail`, all others are coded.
inline constexpr std::string_view kTail = "tail";

/// Stores tokens that leave a tail: whole rows in 16 bits, the oldest first.
using CodeHalves = std::function<void(std::span<const uint16_t> halves)>;
/// Writes coded tokens [at, at + rows.rows()), counted from the first coded one.
using DecodeCoded = std::function<void(uint64_t at, MatrixView<float> rows)>;

/// Appends tokens of `width` values to the tail, of which the oldest `leaving` tokens then leave: code() gets them, in
/// one call, before anything is stored.
void append_to_tail(std::span<const uint16_t> added, size_t width, size_t leaving, StreamStore& document,
                    const CodeHalves& code);

/// Writes tokens [first, first + out.rows()) of a document with `coded` coded tokens and a tail to out (n, width), with
/// at most one call of decode().
void decode_with_tail(DType storage, const StreamReader& document, uint64_t coded, uint64_t first,
                      MatrixView<float> out, const DecodeCoded& decode);
/// The same for a tail of another form, of which read_tail() writes rows, with at most one call.
inline void decode_with_tail(uint64_t coded, uint64_t first, MatrixView<float> out, const DecodeCoded& decode,
                             const DecodeCoded& read_tail) {
  const size_t some = count_before(coded, first, out.rows());
  if (some > 0) decode(first, out.rows(0, some));
  if (some < out.rows()) read_tail(first + some - coded, out.rows(some, out.rows() - some));
}

/// Value of an option for the number of tokens kept exactly. It means a 64th of the document's tokens, but at
/// most the number of the codec's paper.
inline constexpr int64_t kUsualWindow = -1;
/// With kUsualWindow at most one token in this many is exact: 16 / 64 = a quarter of a bit per value.
inline constexpr uint64_t kTokensPerExact = 64;

/// The number of `tokens` tokens that the option keeps exactly. limit: the bound that holds for kUsualWindow. The result grows
/// by at most one with each token.
inline uint64_t exact_tokens_of(int64_t option, uint64_t limit, uint64_t tokens) {
  if (option != kUsualWindow) return static_cast<uint64_t>(option);
  return std::min(limit, tokens / kTokensPerExact);
}

/// Tokens kept exactly at both ends of a document: its first `sink` and its newest `window` tokens. Those between are quantized when they
/// fall out of the window: Q = max(0, T - sink - window) of T tokens, in whatever pieces they came. The window of kUsualWindow is a share
/// of the document: a fixed one would keep most of a short document at 16 bits.
/// Streams:
///   sink  bf16|f16 [min(T, sink)][layers][heads][d]
///   tail  bf16|f16 [T - min(T, sink) - Q][layers][heads][d]
class ExactEnds {
 public:
  /// storage: the 16-bit type of exact tokens. window: a number of tokens, or kUsualWindow, which keeps at most `limit`.
  ExactEnds(DType storage, uint64_t sink, int64_t window, uint64_t limit = 0)
      : storage_(storage), sink_(sink), window_(window), limit_(limit) {}
  /// For codes that would not be smaller than their values: nothing is quantized, and the tail holds all.
  static ExactEnds everything(DType storage) { return {storage, 0, std::numeric_limits<int64_t>::max()}; }

  /// The numbers of first tokens that are kept exactly, and of quantized ones, in a document of `tokens` tokens.
  uint64_t sinks_of(uint64_t tokens) const { return tokens < sink_ ? tokens : sink_; }
  uint64_t quantized_of(uint64_t tokens) const {
    const uint64_t window = exact_tokens_of(window_, limit_, tokens);
    return tokens > sink_ && tokens - sink_ > window ? tokens - sink_ - window : 0;
  }

  StreamSpec sink_stream(const GroupShape& shape) const { return kvcodec::sink_stream(shape, storage_); }
  StreamSpec tail_stream(const GroupShape& shape) const { return exact_stream(kTail, shape, storage_); }

  /// The number of tokens of the document: the rows of both streams and `quantized` others. Throws Error(bad_input) if no
  /// document of that many tokens has these numbers.
  uint64_t tokens(const StreamReader& document, uint64_t quantized) const;

  /// Appends rows (n, width) to a document of `before` tokens. Calls quantize() once if tokens fall out of the window:
  /// it gets their rows in 16 bits, oldest first, and must store them.
  void append(MatrixView<const float> rows, uint64_t before, StreamStore& document,
              const CodeHalves& quantize) const;

  /// Writes tokens [first, first + out.rows()) of a document with `quantized` quantized tokens to out (n, width). Calls
  /// decode(at, rows) at most once: it must write quantized tokens [at, at + rows.rows()), counted from the first of them.
  void decode(const StreamReader& document, uint64_t quantized, uint64_t first, MatrixView<float> out,
              const DecodeCoded& decode) const;

 private:
  DType storage_;
  uint64_t sink_;
  int64_t window_;
  uint64_t limit_;
};

}  // namespace kvcodec
