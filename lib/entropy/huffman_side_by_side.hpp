// Huffman decoding of 64 or 128 runs side by side, one symbol of each at a time, with the book in registers:
// for processors that permute bytes (AVX-512 with VBMI and VBMI2). What a symbol costs does not depend on the
// bits of its code, so it gains where a window of bits holds few symbols. Inside lib/entropy only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/entropy/huffman.hpp"
#include "lib/entropy/huffman_window.hpp"

namespace kvcodec {

namespace huffman_kernels {
struct SideBySideTable;
}

class SideBySideDecoder {
 public:
  /// Whether a run becomes a row or a column.
  enum class Order { by_run, by_symbol };

  SideBySideDecoder() = default;  ///< of no book: ready() is false
  /// codes: codes_by_window(book, window); symbols must fit a byte.
  SideBySideDecoder(const HuffmanBook& book, unsigned window, std::span<const WindowCode> codes);

  /// Whether this machine can, the level in force lets it, and the book has no more long codes than fit.
  bool ready() const;
  /// How many of `runs` runs of n symbols to decode by the next call: 0, 64 or 128; as many as are faster
  /// this way than by look-ups of whole windows.
  size_t runs_at_once(size_t runs, size_t n, Order order = Order::by_run) const;

  /// Decodes run_bits.size() runs, 64 or 128, of 1 to kMostSymbols symbols, from bit first_bit of the payload
  /// (where they lie within) into the rows of out, or, which costs less, into its
  /// columns. Returns those that must be decoded in another way, rising: runs with an escape, and runs whose
  /// bits do not end with their last symbol.
  std::vector<size_t> decode(std::span<const uint8_t> payload, uint64_t first_bit,
                             std::span<const uint32_t> run_bits, MatrixView<uint8_t> out,
                             Order order = Order::by_run) const;

  static constexpr size_t kMostSymbols = size_t{1} << 24;

 private:
  std::shared_ptr<const huffman_kernels::SideBySideTable> table_;
  int escape_ = -1;
  double mean_length_ = 0;  // bits of a code, if symbols are as frequent as their lengths say
};

}  // namespace kvcodec
