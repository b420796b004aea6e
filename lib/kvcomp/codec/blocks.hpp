// Decodes blocks of the codec `kvcomp` that are in memory, and multiplies with them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"
#include "lib/kvcomp/block.hpp"
#include "lib/kvcomp/stored_blocks.hpp"

namespace kvcodec::kvcomp {

/// Buffers for one block; one per thread.
struct BlockScratch {
  explicit BlockScratch(const Layout& layout);
  Matrix<uint8_t> runs, symbols;
  std::vector<EscapedValue> exact;
  std::vector<int16_t> origins;
  Matrix<float> vectors, rows;  // of products

  /// Which blocks the caller asks for next: every stride-th, counted [row][head], below `end`. With rANS some of
  /// them are decoded ahead.
  size_t stride = 1, end = 0;
  std::vector<size_t> ahead;  // blocks decoded, in the rows of ahead_runs
  Matrix<uint8_t> ahead_runs;
  std::array<std::vector<EscapedValue>, BlockCoder::kTogether> ahead_exact;
};

/// Some block rows of a document, to decode and to multiply with.
class LoadedBlocks {
 public:
  /// storage: type of values kept exactly.
  LoadedBlocks(const Layout& layout, DType storage, StoredBlocks stored);

  size_t rows() const { return blocks_.size() / layout_.heads; }

  /// The values of one head of a block row: (tokens, dims). Throws Error(bad_input) for a damaged block.
  void decode(size_t row, size_t head, BlockScratch& scratch, MatrixView<float> out) const;

  /// Adds how often each symbol occurs in one head of a block row; a raw block has none. counts: 256.
  void count_symbols(size_t row, size_t head, BlockScratch& scratch, std::span<uint64_t> counts) const;

  /// scores(g, t) = query g . key of the block's token t. queries: (n, dims); scores: (n, tokens).
  void multiply_keys(size_t row, size_t head, MatrixView<const float> queries, BlockScratch& scratch,
                     MatrixView<float> scores) const;

  /// out(g, c) += sum over the block's tokens of weights(g, t) * value(t, c). weights: (n, tokens); out: (n,
  /// dims).
  void multiply_values(size_t row, size_t head, MatrixView<const float> weights, BlockScratch& scratch,
                       MatrixView<float> out) const;

 private:
  /// One block of one head.
  struct Block {
    uint8_t mode = 0, origin_bits = 0;
    std::span<const uint8_t> payload, counts, origins;
    std::span<const float> steps;
  };

  const Block& block(size_t row, size_t head) const { return blocks_[row * layout_.heads + head]; }
  void decode_runs(const Block& block, BlockScratch& scratch) const;
  MatrixView<const uint8_t> decode_tokens(const Block& block, BlockScratch& scratch) const;
  void decode_ahead(size_t index, BlockScratch& scratch) const;
  void read_origins(const Block& block, BlockScratch& scratch) const;
  void decode_raw(const Block& block, MatrixView<float> out) const;
  float exact_value(const EscapedValue& exact) const;

  Layout layout_;
  DType storage_;
  StoredBlocks stored_;
  std::vector<float> steps_;
  std::vector<Block> blocks_;
};

}  // namespace kvcodec::kvcomp
