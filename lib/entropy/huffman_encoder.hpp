// Huffman encoding of runs of bytes; huffman.hpp says what a run is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/entropy/huffman.hpp"

namespace kvcodec {

/// Symbols in one run at most: its bits, raw values included, are counted in 32 bits.
inline constexpr size_t kMaxRunSymbols = size_t{1} << 26;

class HuffmanEncoder {
 public:
  /// Throws Error(failed) if the book has more than 256 symbols, the escape included.
  explicit HuffmanEncoder(const HuffmanBook& book);

  /// Appends the rows of `symbols` (runs, n) as runs to `out`, from a whole byte on, and pads the last byte
  /// with zeros. Symbols are ones that have a code; in place of others stands the escape, and `raw` holds
  /// their values in order (as many as there are escapes, each below 2^escape_bits). run_bits[i] becomes the
  /// bits of run i. Throws Error(failed) for a symbol without a code, another number of raw values, raw
  /// values that are too wide, or runs of more than kMaxRunSymbols; `out` is then unspecified.
  void encode_runs(MatrixView<const uint8_t> symbols, std::span<const uint32_t> raw,
                   std::span<uint32_t> run_bits, std::vector<uint8_t>& out) const;

 private:
  static constexpr size_t kBytes = 256;

  unsigned max_length_, escape_bits_;
  size_t escape_;  // kBytes where there is none
  std::array<uint64_t, kBytes> codes_;
};

}  // namespace kvcodec
