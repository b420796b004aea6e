// Huffman decoding of runs; huffman.hpp says what a run is. Two decoders with the same results: the table for
// use, the tree walk as its reference. Both take any bytes: they read nothing outside the payload and refuse
// runs whose bits do not end with their last symbol or its raw values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/entropy/escaped.hpp"
#include "lib/entropy/huffman.hpp"
#include "lib/entropy/huffman_side_by_side.hpp"

namespace kvcodec {

/// Decodes several symbols per look-up: a table over the next 11 bits (12 if the book has codes that long)
/// holds all symbols that lie within them entirely, and eight runs are decoded side by side. Short runs of
/// one call are decoded as if they were one, up to 1,024 symbols: damage that does not change their total
/// number of bits then goes unnoticed. Where it is faster, many runs of one call are decoded as in
/// huffman_side_by_side.hpp. Symbol: uint8_t (books of at most 256 symbols, the escape included) or uint16_t.
template <class Symbol>
class HuffmanDecoder {
 public:
  /// Throws Error(failed) if the book's symbols do not fit the type.
  explicit HuffmanDecoder(const HuffmanBook& book);

  /// Decodes consecutive runs of out.cols() symbols, the first one from bit first_bit of `payload` on, run i
  /// of run_bits[i] bits, into row i of out: (run_bits.size(), n). Escapes stand in out as the escape's
  /// number; their values are appended to `escaped` in order. Throws Error(bad_input) naming the run if the
  /// payload ends before the runs do, or for a run that is damaged; out and escaped are then unspecified.
  void decode_runs(std::span<const uint8_t> payload, uint64_t first_bit, std::span<const uint32_t> run_bits,
                   MatrixView<Symbol> out, std::vector<EscapedValue>& escaped) const;

  /// The same with run i in column i of out: (n, run_bits.size()). For data that was cut into runs by
  /// columns, such as the channels of rows of tokens. Takes no longer than decode_runs, and less time where
  /// many runs are decoded side by side; the bits of each of these must end with its own last symbol. Escapes
  /// are appended run after run here too; their `row` is the run.
  void decode_columns(std::span<const uint8_t> payload, uint64_t first_bit,
                      std::span<const uint32_t> run_bits, MatrixView<Symbol> out,
                      std::vector<EscapedValue>& escaped) const;

 private:
  struct Work;
  void decode_rows(std::span<const uint8_t> payload, uint64_t first_bit, size_t first_run,
                   std::span<const uint32_t> run_bits, MatrixView<Symbol> out,
                   std::vector<EscapedValue>& escaped) const;
  uint64_t decode_chained(Work& work, size_t run, size_t chain, uint64_t first_bit) const;
  uint64_t decode_group(Work& work, size_t run, size_t count, uint64_t first_bit) const;

  HuffmanBook book_;
  unsigned window_;
  std::vector<uint8_t> lengths_;    // of the book's symbols
  std::vector<uint64_t> entries_;   // huffman_kernels.hpp
  SideBySideDecoder side_by_side_;  // for symbols of one byte
};

/// The paper's decoder (KVComp, section 3.3.1): the code tree as an array of nodes, walked bit by bit without
/// a branch. Every node's symbol is written, but the place to write moves on, and the walk returns to the
/// root, only where the node is a symbol.
template <class Symbol>
class HuffmanTreeWalk {
 public:
  explicit HuffmanTreeWalk(const HuffmanBook& book);

  /// As HuffmanDecoder::decode_runs.
  void decode_runs(std::span<const uint8_t> payload, uint64_t first_bit, std::span<const uint32_t> run_bits,
                   MatrixView<Symbol> out, std::vector<EscapedValue>& escaped) const;

 private:
  struct Node {
    uint16_t child[2] = {};  ///< by the next bit
    uint16_t is_symbol = 0;
    Symbol symbol = 0;
  };
  HuffmanBook book_;
  std::vector<Node> nodes_;  // the root first
};

}  // namespace kvcodec
