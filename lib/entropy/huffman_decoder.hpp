// Huffman decoding of runs of bytes; huffman.hpp says what a run is. Any bytes may be given: nothing outside
// the payload is read, and runs whose bits do not end with their last symbol or its raw values are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/entropy/escaped.hpp"
#include "lib/entropy/huffman.hpp"

namespace kvcodec {

/// Decodes several symbols per look-up, and several runs side by side. Neighbouring runs of one call are
/// decoded as if they were one, where their rows follow each other without gaps: damage that does not change
/// their total number of bits then goes unnoticed.
class HuffmanDecoder {
 public:
  /// Throws Error(failed) if the book has more than 256 symbols, the escape included.
  explicit HuffmanDecoder(const HuffmanBook& book);

  /// Decodes consecutive runs of out.cols() symbols, the first one from bit first_bit of `payload` on, run i
  /// of run_bits[i] bits, into row i of out: (run_bits.size(), n). Escapes stand in out as the escape's
  /// number; their values are appended to `escaped` in order. Throws Error(bad_input) naming the run if the
  /// payload ends before the runs do, or for a run that is damaged; out and escaped are then unspecified.
  void decode_runs(std::span<const uint8_t> payload, uint64_t first_bit, std::span<const uint32_t> run_bits,
                   MatrixView<uint8_t> out, std::vector<EscapedValue>& escaped) const;

 private:
  struct Work;
  size_t decode_joined(Work& work, size_t per_lane) const;
  void decode_alone(Work& work, size_t run) const;
  bool has_escape(std::span<const uint8_t> symbols) const;

  HuffmanBook book_;
  std::vector<uint64_t> entries_;  // huffman_kernels.hpp
};

}  // namespace kvcodec
