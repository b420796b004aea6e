// The streams of coded blocks of the codec `kvcomp`, which lib/kvcomp/codec/codec.cpp describes: finding blocks,
// reading and decoding them, and products with them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/codec/places.hpp"
#include "lib/codec/stream.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/lazy.hpp"
#include "lib/core/view.hpp"
#include "lib/kvcomp/block.hpp"
#include "lib/kvcomp/stored_blocks.hpp"

namespace kvcodec::kvcomp {

inline constexpr std::string_view kBook = "book", kModes = "modes", kSizes = "sizes", kCounts = "counts",
                                  kPayload = "payload", kSteps = "steps", kOriginBits = "origin_bits",
                                  kOrigins = "origins";

/// Streams in which a block has any number of rows, in the order of the columns of `places`.
enum PartStream : size_t { size_part, count_part, payload_part, step_part, origin_part };
std::span<const std::string_view> part_streams(const Layout& layout);

/// Tokens of a document. Throws Error(bad_input) if its block rows and its exact tokens disagree.
uint64_t tokens_of(const Layout& layout, const StreamReader& document);

/// The book of a document. Throws Error(bad_input) for streams that hold none.
BlockCoder read_coder(const StreamReader& document);

/// Stores the rows of `places` of blocks that are about to be appended.
void store_places(const Layout& layout, const BlockCoder& coder, const EncodedBlocks& blocks,
                  StreamStore& document);

/// The block rows of a document. Threads may read at once.
class BlockReader {
 public:
  /// document outlives this.
  BlockReader(const Layout& layout, const StreamReader& document);

  /// Counts the block rows, for the first time or after the document grew. Not while other threads read.
  void refresh() {
    rows_ = document_.rows(kModes);
    const uint64_t blocks = checked_mul(rows_, layout_.heads);
    places_.grow(document_, blocks, blocks);
  }
  uint64_t rows() const { return rows_; }

  const BlockCoder& coder() const {
    return coder_.get([&] { return read_coder(document_); });
  }

  /// Block rows [first, last), which are there. Throws Error(bad_input) for streams that no encoder writes.
  StoredBlocks read(uint64_t first, uint64_t last) const;

 private:
  struct BlockHead {
    uint8_t mode = 0, origin_bits = 0;
  };
  const Interval<BlockHead>& interval_of(uint64_t block) const {
    return places_.at(block, document_,
                      [&](Interval<BlockHead>& interval, uint64_t last) { read_heads(interval, last); });
  }
  void read_heads(Interval<BlockHead>& interval, uint64_t last) const;

  Layout layout_;
  const StreamReader& document_;
  uint64_t rows_ = 0;
  Lazy<BlockCoder> coder_;
  Places<BlockHead> places_;
};

/// Buffers for one block; one per thread.
struct BlockScratch {
  explicit BlockScratch(const Layout& layout)
      : runs(layout.block.runs(), layout.block.run_length()),
        symbols(layout.block.by_channel ? layout.block.tokens : 0, layout.block.dims),
        origins(layout.block.by_channel ? 0 : layout.block.dims) {}
  Matrix<uint8_t> runs, symbols;
  std::vector<EscapedValue> exact;
  std::vector<int16_t> origins;         // of keys; zeros where the codes have none
  Matrix<float> vectors, rows, scores;  // of products

  /// The blocks that the caller asks for next: every stride-th, counted [row][head], below `end`. With rANS some
  /// of them are decoded ahead.
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

  size_t rows() const { return stored_.blocks.size() / layout_.heads; }

  /// The values of one head of a block row: (tokens, dims). Throws Error(bad_input) for a damaged block.
  void decode(size_t row, size_t head, BlockScratch& scratch, MatrixView<float> out) const;

  /// Adds the counts of symbols in one head of a block row; a raw block has none. counts: 256.
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
    size_t index = 0;  ///< [row][head]
    uint8_t mode = 0, origin_bits = 0;
    std::span<const uint8_t> payload, counts, origins;
    std::span<const float> steps;
  };

  Block block(size_t index) const;
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
};

}  // namespace kvcodec::kvcomp
