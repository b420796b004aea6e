// Documents of the codec `kvcomp`, opened.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/kvcomp/codec/blocks.hpp"
#include "lib/kvcomp/codec/options.hpp"

namespace kvcodec::kvcomp {
namespace {

/// Blocks that one piece of decoding or of a product covers: enough to be worth handing out.
constexpr size_t kPieceBlocks = 8;

/// Block rows whose symbols are counted at a time: some MiB of blocks.
constexpr uint64_t kCountedRows = 64;

/// From so many queries of a head on, decoding and a matrix product (blocked over queries) take less time than a
/// product with symbols, which goes over the symbols again for every four queries. With 4 queries the latter is
/// faster, with 128 it takes almost twice as long.
constexpr size_t kManyQueries = 33;

class KvcompView final : public DocumentView {
 public:
  KvcompView(const KvcompOptions& options, const GroupShape& shape, DType storage, Engine* engine,
             const StreamReader& document)
      : DocumentView(shape, document),
        layout_(layout_of(options, shape)),
        storage_(storage),
        has_limits_(has_limits(options, shape.side)),
        engine_(engine ? engine->make<BlockEngine>() : nullptr),
        reader_(layout_, document) {}

  std::vector<uint64_t> symbol_counts() const override {
    const uint64_t rows = reader_.rows();
    std::vector<uint64_t> total(256);
    for (uint64_t first = 0; first < rows; first += kCountedRows) {
      const LoadedBlocks blocks(layout_, storage_, reader_.read(first, std::min(first + kCountedRows, rows)));
      std::vector<std::vector<uint64_t>> counts(blocks.rows() * layout_.heads);
      parallel_for(counts.size(), 1, [&](size_t begin, size_t end, int) {
        BlockScratch scratch(layout_);
        for (size_t i = begin; i < end; ++i) {
          counts[i].resize(total.size());
          blocks.count_symbols(i / layout_.heads, i % layout_.heads, scratch, counts[i]);
        }
      });
      for (const auto& of_block : counts)
        for (size_t symbol = 0; symbol < total.size(); ++symbol) total[symbol] += of_block[symbol];
    }
    return total;
  }

 protected:
  uint64_t take_in() override {
    const uint64_t tokens = tokens_of(layout_, document());
    reader_.refresh();
    return tokens;
  }

  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    check_limits();
    (void)reader_.coder();  // so that a damaged book is refused, also where all tokens lie in the tail
    decode_with_tail(storage_, document(), in_blocks(), first, out,
                     [&](uint64_t at, MatrixView<float> rows) { decode_blocks(at, rows); });
  }

  void multiply_range(uint64_t first, MatrixView<const float> factors, MatrixView<float> out) const override {
    if (factors.rows() / layout_.heads >= kManyQueries)
      return DocumentView::multiply_range(first, factors, out);
    const bool keys = shape().side == Side::key;
    const size_t count = keys ? out.cols() : factors.cols(), blocks = count_before(in_blocks(), first, count),
                 exact = count - blocks;
    if (keys) {
      multiply_key_blocks(first, factors, out.columns(0, blocks));
      if (exact > 0) multiply_key_rows(tail(first + blocks, exact), factors, out.columns(blocks, exact));
    } else {
      multiply_value_blocks(first, factors.columns(0, blocks), out);
      if (exact > 0) multiply_value_rows(tail(first + blocks, exact), factors.columns(blocks, exact), out);
    }
  }

  Block block_of(uint64_t token) const override {
    return equal_block(token, layout_.block.tokens, in_blocks());
  }

 private:
  /// Tokens that lie in blocks, the first ones; the others lie exactly in the tail.
  uint64_t in_blocks() const { return reader_.rows() * layout_.block.tokens; }
  /// Tokens from `first` on, all of them in the tail.
  Matrix<float> tail(uint64_t first, size_t count) const {
    Matrix<float> rows(count, layout_.width());
    read_exact(kTail, storage_, document(), first - in_blocks(), rows);
    return rows;
  }
  /// The blocks of tokens [first, first + count), all of them in blocks.
  LoadedBlocks load(uint64_t first, uint64_t count) const {
    const uint64_t block = layout_.block.tokens;
    const uint64_t begin = first / block, end = count == 0 ? begin : (first + count - 1) / block + 1;
    return {layout_, storage_, reader_.read(begin, end)};
  }
  /// The device's copy of the blocks, to work with `tokens` tokens of them; nullptr: the CPU does.
  BlocksElsewhere* elsewhere(size_t tokens) const {
    if (!engine_ || tokens == 0) return nullptr;
    const auto open = [&] {
      return engine_->document(layout_, storage_, reader_.coder(),
                               [this](uint64_t first, uint64_t last) { return reader_.read(first, last); });
    };
    return elsewhere_.get(open).get();
  }
  /// The tokens that are wanted of a block: `count` from its token `begin` on, the first of which is wanted token `place`.
  struct Piece {
    size_t row, head;  ///< of the blocks that were loaded
    size_t begin, count, place;
  };
  /// The piece of tokens [first, first + count), with whose first block rows begin.
  Piece piece_of(size_t row, size_t head, uint64_t first, size_t count) const {
    const uint64_t block = layout_.block.tokens, start = (first / block + row) * block;
    const uint64_t from = std::max(start, first), to = std::min(start + block, first + count);
    return {row, head, from - start, to - from, from - first};
  }
  /// Calls body(piece, scratch) for each block that holds tokens [first, first + count), which lie in blocks.
  template <class Body>
  void for_each_piece(const LoadedBlocks& blocks, uint64_t first, size_t count, const Body& body) const {
    parallel_for(blocks.rows() * layout_.heads, kPieceBlocks, [&](size_t begin, size_t end, int) {
      BlockScratch scratch(layout_);
      scratch.end = end;
      for (size_t i = begin; i < end; ++i)
        body(piece_of(i / layout_.heads, i % layout_.heads, first, count), scratch);
    });
  }

  /// Decoding does not use the limits. They are checked so that a file damaged there is refused.
  void check_limits() const {
    if (!has_limits_) return;
    (void)limits_fit_.get([&] {
      for (const float limit :
           document().read<float>(kLimits, 0, 1, layout_.heads * limits_per_head(layout_)))
        if (!(limit > 0 && std::isfinite(limit)))
          throw bad_input("stream '{}': {} is not a limit", kLimits, limit);
      return true;
    });
  }

  /// Tokens [first, first + out.rows()), all of them in blocks.
  void decode_blocks(uint64_t first, MatrixView<float> out) const {
    if (BlocksElsewhere* device = elsewhere(out.rows()); device && device->decode(first, out)) return;
    const size_t block = layout_.block.tokens, d = layout_.block.dims;
    const LoadedBlocks blocks = load(first, out.rows());
    for_each_piece(blocks, first, out.rows(), [&](const Piece& piece, BlockScratch& scratch) {
      const auto wanted = out.rows(piece.place, piece.count).columns(piece.head * d, d);
      if (piece.count == block) return blocks.decode(piece.row, piece.head, scratch, wanted);
      Matrix<float> whole(block, d);
      blocks.decode(piece.row, piece.head, scratch, whole);
      for (size_t t = 0; t < wanted.rows(); ++t)
        std::ranges::copy(whole.row(piece.begin + t), wanted.row(t).begin());
    });
  }

  void multiply_key_blocks(uint64_t first, MatrixView<const float> queries, MatrixView<float> out) const {
    const size_t tokens = out.cols(), block = layout_.block.tokens;
    if (BlocksElsewhere* device = elsewhere(tokens); device && device->multiply_keys(first, queries, out))
      return;
    const size_t per_head = queries.rows() / layout_.heads;
    const LoadedBlocks blocks = load(first, tokens);
    for_each_piece(blocks, first, tokens, [&](const Piece& piece, BlockScratch& scratch) {
      if (scratch.scores.rows() == 0) scratch.scores = Matrix<float>(per_head, block);
      blocks.multiply_keys(piece.row, piece.head, queries.rows(piece.head * per_head, per_head), scratch,
                           scratch.scores);
      for (size_t g = 0; g < per_head; ++g)
        std::ranges::copy(std::as_const(scratch.scores).row(g).subspan(piece.begin, piece.count),
                          out.row(piece.head * per_head + g).subspan(piece.place).begin());
    });
  }

  void multiply_value_blocks(uint64_t first, MatrixView<const float> weights, MatrixView<float> out) const {
    const size_t tokens = weights.cols(), block = layout_.block.tokens;
    if (BlocksElsewhere* device = elsewhere(tokens); device && device->multiply_values(first, weights, out))
      return;
    const size_t per_head = weights.rows() / layout_.heads, d = layout_.block.dims;
    const LoadedBlocks blocks = load(first, tokens);
    // Sums over tokens: one partial sum for each head and so many block rows, added up in their order.
    const size_t pieces = (blocks.rows() + kPieceBlocks - 1) / kPieceBlocks;
    std::vector<Matrix<float>> partial(pieces * layout_.heads);
    parallel_for(partial.size(), 1, [&](size_t i, size_t, int) {
      const size_t head = i % layout_.heads, first_row = i / layout_.heads * kPieceBlocks,
                   end_row = std::min(first_row + kPieceBlocks, blocks.rows());
      BlockScratch scratch(layout_);
      scratch.stride = layout_.heads;
      scratch.end = end_row * layout_.heads;
      partial[i] = Matrix<float>(per_head, d);
      Matrix<float> part(per_head, block);  // the weights of one block, 0 for tokens not asked for
      for (size_t row = first_row; row < end_row; ++row) {
        const Piece piece = piece_of(row, head, first, tokens);
        for (size_t g = 0; g < per_head; ++g) {
          std::ranges::fill(part.row(g), 0.0f);
          std::ranges::copy(weights.row(head * per_head + g).subspan(piece.place, piece.count),
                            part.row(g).subspan(piece.begin).begin());
        }
        blocks.multiply_values(row, head, part, scratch, partial[i]);
      }
    });
    for (size_t i = 0; i < out.rows(); ++i) std::ranges::fill(out.row(i), 0.0f);
    for (size_t i = 0; i < partial.size(); ++i)
      for (size_t g = 0; g < per_head; ++g) {
        const auto sum = out.row(i % layout_.heads * per_head + g);
        for (size_t c = 0; c < d; ++c) sum[c] += partial[i](g, c);
      }
  }

  Layout layout_;
  DType storage_;
  bool has_limits_;
  const BlockEngine* engine_;
  BlockReader reader_;
  Lazy<bool> limits_fit_;
  Lazy<std::unique_ptr<BlocksElsewhere>> elsewhere_;
};

}  // namespace

ViewPtr make_view(const KvcompOptions& options, const GroupShape& shape, DType storage, Engine* engine,
                  const StreamReader& document) {
  return std::make_unique<KvcompView>(options, shape, storage, engine, document);
}

}  // namespace kvcodec::kvcomp
