// Tokens kept exactly at both ends of a document: its first `sink` and its newest `window` tokens. Those
// between are quantized when they fall out of the window: Q = max(0, T - sink - window) of T tokens, in
// whatever pieces they came. The window of kUsualWindow is a share of the document: a fixed one would keep
// most of a short document at 16 bits.
// Streams:
//   sink  bf16|f16 [min(T, sink)][layers][heads][d]
//   tail  bf16|f16 [T - min(T, sink) - Q][layers][heads][d]
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

#include "lib/codec/group_shape.hpp"
#include "lib/codec/stream.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// Value of an option for the number of tokens kept exactly. It means a 64th of the document's tokens, but no
/// more than the codec's paper keeps.
inline constexpr int64_t kUsualWindow = -1;
/// With kUsualWindow at most one token in this many is exact: 16 / 64 = a quarter of a bit per value.
inline constexpr uint64_t kTokensPerExact = 64;

/// How many of `tokens` tokens that option keeps exactly. most: the limit that holds for kUsualWindow. The result grows
/// by at most one with each token.
inline uint64_t exact_tokens_of(int64_t option, uint64_t most, uint64_t tokens) {
  if (option != kUsualWindow) return static_cast<uint64_t>(option);
  return std::min(most, tokens / kTokensPerExact);
}

class ExactEnds {
 public:
  /// storage: the 16-bit type of exact tokens. window: a number of tokens, or kUsualWindow, which keeps at most `most`.
  ExactEnds(DType storage, uint64_t sink, int64_t window, uint64_t most = 0)
      : storage_(storage), sink_(sink), window_(window), most_(most) {}
  /// For codes that would not be smaller than their values: nothing is quantized, and the tail holds all.
  static ExactEnds everything(DType storage) { return {storage, 0, std::numeric_limits<int64_t>::max()}; }

  /// Of a document of `tokens` tokens: how many first ones are kept exactly, and how many are quantized.
  uint64_t sinks_of(uint64_t tokens) const { return tokens < sink_ ? tokens : sink_; }
  uint64_t quantized_of(uint64_t tokens) const {
    const uint64_t window = exact_tokens_of(window_, most_, tokens);
    return tokens > sink_ && tokens - sink_ > window ? tokens - sink_ - window : 0;
  }

  StreamSpec sink_stream(const GroupShape& shape) const;
  StreamSpec tail_stream(const GroupShape& shape) const;

  /// How many tokens the document has: the rows of both streams and `quantized` others. Throws Error(bad_input) if no
  /// document of that many tokens has these numbers.
  uint64_t tokens(const StreamReader& document, uint64_t quantized) const;

  /// Appends rows (n, width) to a document of `before` tokens. Calls quantize() once if tokens fall out of the window:
  /// it gets their rows in 16 bits, oldest first, and must store them.
  void append(MatrixView<const float> rows, uint64_t before, StreamStore& document,
              const std::function<void(std::span<const uint16_t> halves)>& quantize) const;

  /// Writes tokens [first, first + out.rows()) of a document with `quantized` quantized tokens to out (n, width). Calls
  /// decode(at, rows) at most once: it must write quantized tokens [at, at + rows.rows()), counted from the first of
  /// them.
  void decode(const StreamReader& document, uint64_t quantized, uint64_t first, MatrixView<float> out,
              const std::function<void(uint64_t at, MatrixView<float> rows)>& decode) const;

 private:
  DType storage_;
  uint64_t sink_;
  int64_t window_;
  uint64_t most_;
};

}  // namespace kvcodec
