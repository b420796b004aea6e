// rANS encoding of segments; rans.hpp says what a segment is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/entropy/rans.hpp"

namespace kvcodec {

/// Symbols in one segment at most: its bytes are counted in 32 bits.
inline constexpr size_t kMaxSegmentSymbols = size_t{1} << 26;

class RansEncoder {
 public:
  explicit RansEncoder(const RansModel& model) : RansEncoder(std::span(&model, 1)) {}
  /// For segments whose runs have models of their own. Throws Error(failed) unless there is one, and all have the
  /// same alphabet and escape_bits.
  explicit RansEncoder(std::span<const RansModel> models);

  /// Appends the rows of `symbols` (segments, n) to `out` as segments one behind the other. Symbols are ones
  /// that have a frequency; in place of others stands the escape, and `raw` holds their values in order (as
  /// many as there are escapes, each below 2^escape_bits). segment_bytes[i] becomes the bytes of segment i.
  /// Throws Error(failed) for a symbol without a frequency, another number of raw values, raw values that are
  /// too wide, or segments of more than kMaxSegmentSymbols; `out` is then unspecified.
  void encode_segments(MatrixView<const uint8_t> symbols, std::span<const uint32_t> raw,
                       std::span<uint32_t> segment_bytes, std::vector<uint8_t>& out) const;
  void encode_segments(MatrixView<const uint16_t> symbols, std::span<const uint32_t> raw,
                       std::span<uint32_t> segment_bytes, std::vector<uint8_t>& out) const;

  /// The same with these runs in every segment, which together have as many symbols as a row.
  void encode_segments(MatrixView<const uint8_t> symbols, std::span<const RansRun> runs,
                       std::span<const uint32_t> raw, std::span<uint32_t> segment_bytes,
                       std::vector<uint8_t>& out) const;

 private:
  /// One step: x' = x + bias + floor(x / frequency) * complement, after x has been brought below `limit`.
  struct Step {
    uint64_t reciprocal = 0;  ///< floor(x / frequency) is the high half of x * reciprocal
    uint64_t limit = 0;       ///< 0: the symbol has no frequency
    uint32_t bias = 0;
    uint32_t complement = 0;
  };
  template <class Symbol>
  void encode(MatrixView<const Symbol> symbols, std::span<const RansRun> runs, std::span<const uint32_t> raw,
              std::span<uint32_t> segment_bytes, std::vector<uint8_t>& out) const;
  std::span<const Step> steps(size_t model) const {
    return std::span(steps_).subspan(model * symbols_, symbols_);
  }

  unsigned escape_bits_;
  size_t escape_, symbols_;
  std::vector<Step> steps_;  // of each model, of each symbol
};

}  // namespace kvcodec
