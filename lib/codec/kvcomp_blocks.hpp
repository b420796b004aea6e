// Blocks of the codec `kvcomp` as they lie in streams, brought into memory: what decoding and products share.
// lib/codec/kvcomp_codec.cpp describes the streams.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/codec/stream.hpp"
#include "lib/core/view.hpp"
#include "lib/kvcomp/block.hpp"
#include "lib/quant/error_bounded.hpp"

namespace kvcodec::kvcomp {

inline constexpr std::string_view kBook = "book", kModes = "modes", kSizes = "sizes", kCounts = "counts",
                                  kPayload = "payload", kSteps = "steps", kOriginBits = "origin_bits",
                                  kOrigins = "origins", kTail = "tail";

/// Sizes that follow from options and shape.
struct Layout {
  BlockShape block;
  size_t heads = 0;
  UnitShape unit = UnitShape::row;
  bool has_origins = false;
  bool shared_steps = false;  // by all heads of a block row
  bool pays = true;           // blocks may be smaller than their values

  size_t width() const { return heads * block.dims; }
  /// Steps of a block, or of a whole block row if they are shared.
  size_t steps() const {
    return unit == UnitShape::column ? block.dims : unit == UnitShape::row ? block.tokens : 1;
  }
  size_t row_steps() const { return shared_steps ? steps() : heads * steps(); }
  size_t origins() const { return has_origins ? block.dims : 0; }
  size_t origin_bytes(uint8_t bits) const { return 2 + (block.dims * bits + 7) / 8; }
};

/// Block rows of a document as they lie in its streams.
struct StoredBlocks {
  /// Reads block rows [first, last). Throws Error(bad_input) for streams that no encoder writes.
  StoredBlocks(const Layout& layout, const StreamReader& document, uint64_t first, uint64_t last);

  /// Where the parts of a block begin, and how long they are.
  struct Part {
    uint64_t start = 0, size = 0;
  };
  struct Block {
    uint8_t mode = 0, origin_bits = 0;
    Part payload, counts, origins;  ///< bytes
    Part steps;
  };

  BlockCoder coder;
  std::vector<uint8_t> payload, counts, origins;
  std::vector<uint16_t> steps;  ///< f16, finite and >= 0
  std::vector<Block> blocks;    ///< [row][head]
};

/// What block rows become in the streams, which it is appended to.
struct EncodedBlocks {
  std::vector<uint8_t> modes, counts, payload, origin_bits, origins;
  std::vector<uint32_t> sizes;
  std::vector<uint16_t> steps;  ///< f16
};

/// What computes with whole blocks in place of this processor: a device. Threads may share it. False or
/// nothing: left to the caller, and what was to be written holds nothing. What it gives is what the codec
/// makes, bit for bit, but products: of n terms they are within (2 n + 16) 2^-24 times the sum of the terms'
/// magnitudes of exact ones, where of keys levels and origins are terms apart; and products with keys also
/// drop what is below 2^-35 of a block's largest query x step: up to n 2^-28 times that.
class BlockEngine {
 public:
  virtual ~BlockEngine() = default;

  /// values: (whole block rows of tokens, layout.width()), finite and of `storage`. Symbols have the steps
  /// and origins of quantize_bounded.
  virtual std::optional<EncodedBlocks> encode(const Layout& layout, DType storage, const ErrorBound& bound,
                                              const BlockCoder& coder,
                                              MatrixView<const uint16_t> values) const = 0;
  /// How often each of the 256 symbols of the same occurs.
  virtual std::optional<std::vector<uint64_t>> count_symbols(const Layout& layout, DType storage,
                                                             const ErrorBound& bound,
                                                             MatrixView<const uint16_t> values) const = 0;

  /// Tokens [first, first + out.rows()) of the document, all of them in blocks: (n, layout.width()).
  virtual bool decode(const Layout& layout, DType storage, const StreamReader& document, uint64_t first,
                      MatrixView<float> out) const = 0;

  /// As Codec::multiply_keys and Codec::multiply_values, of tokens that are all in blocks.
  virtual bool multiply_keys(const Layout& layout, DType storage, const StreamReader& document,
                             uint64_t first, MatrixView<const float> queries,
                             MatrixView<float> out) const = 0;
  virtual bool multiply_values(const Layout& layout, DType storage, const StreamReader& document,
                               uint64_t first, MatrixView<const float> weights,
                               MatrixView<float> out) const = 0;
};

/// Room for one block in work; one per thread.
struct BlockScratch {
  explicit BlockScratch(const Layout& layout);
  Matrix<uint8_t> runs, symbols;
  std::vector<EscapedValue> exact;
  std::vector<int16_t> origins;
  Matrix<float> vectors, rows;  // of products

  /// Which blocks come next: every stride-th, counted [row][head], below `end`. rANS decodes some of them
  /// ahead.
  size_t stride = 1, end = 0;
  std::vector<size_t> ahead;  // blocks decoded, in the rows of ahead_runs
  Matrix<uint8_t> ahead_runs;
  std::array<std::vector<EscapedValue>, BlockCoder::kTogether> ahead_exact;
};

/// Block rows [first, last) of a document.
class LoadedBlocks {
 public:
  /// storage: type of values kept exactly. Throws Error(bad_input) for streams that no encoder writes.
  LoadedBlocks(const Layout& layout, DType storage, const StreamReader& document, uint64_t first,
               uint64_t last);

  size_t rows() const { return rows_; }

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
  size_t rows_;
  StoredBlocks stored_;
  std::vector<float> steps_;
  std::vector<Block> blocks_;
};

}  // namespace kvcodec::kvcomp
