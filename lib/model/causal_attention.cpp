#include "lib/model/causal_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/model/attention_tiles.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

// With tiles of attention_tiles.cpp.
constexpr size_t kKeyBlock = 512;
// softmax_block wants whole vectors.
constexpr size_t kPadding = 16;

class TileAttention {
 public:
  TileAttention(const ModelConfig& config, int64_t window, std::span<const float> sinks,
                const AttentionTile& tile, float* scratch)
      : config_(config),
        window_(window),
        cap_(static_cast<float>(config.attention_softcap)),
        tile_(tile),
        dim_(static_cast<size_t>(config.head_dim)),
        value_dim_(static_cast<size_t>(config.value_dim())),
        group_(static_cast<size_t>(config.group_size())),
        rows_(tile.tokens * group_),
        query_(scratch, rows_, dim_),
        sum_(scratch + rows_ * dim_, rows_, value_dim_),
        scores_(scratch + 2 * rows_ * dim_, rows_, kKeyBlock),
        states_(rows_) {
    for (size_t row = 0; row < rows_ && !sinks.empty(); ++row)
      states_[row] = {sinks[tile.kv_head * group_ + row % group_], 1};
  }

  /// query, out: rows of the tile's tokens, all heads. key, value: rows of the document. log_sums: as query, or empty.
  void run(MatrixView<const float> query, MatrixView<const float> key, MatrixView<const float> value,
           MatrixView<float> out, MatrixView<float> log_sums) {
    gather_heads(config_, tile_, query, 1.0f / std::sqrt(static_cast<float>(dim_)), query_);
    const size_t seen = visible_from(tile_.position, window_).begin / kKeyBlock * kKeyBlock;
    const size_t end = tile_.position + tile_.tokens;
    for (size_t block = seen; block < end; block += kKeyBlock) {
      const size_t width = std::min(kKeyBlock, end - block);
      const MatrixView<float> scores(scores_.data(), rows_, width, kKeyBlock);
      gemm(1, query_, Transpose::no, head_of(key, dim_, block, width), Transpose::yes, 0, scores);
      for (size_t row = 0; row < rows_; ++row) weigh(row, block, width, block == seen);
      gemm(1, scores, Transpose::no, head_of(value, value_dim_, block, width), Transpose::no,
           block == seen ? 0.0f : 1.0f, sum_);
    }
    scatter(out);
    if (log_sums.rows() > 0) write_log_sums(log_sums);
  }

 private:
  MatrixView<const float> head_of(MatrixView<const float> rows, size_t dim, size_t first,
                                  size_t count) const {
    return rows.rows(first, count).columns(tile_.kv_head * dim, dim);
  }

  /// Masks one row of scores, turns it into weights, and scales the row's sum so far; before the first block there is
  /// none.
  void weigh(size_t row, size_t block, size_t width, bool first) {
    constexpr float kMasked = -std::numeric_limits<float>::infinity();
    const auto [begin, end] = visible_within(tile_.position + row / group_, window_, block, width);
    const size_t padded = (width + kPadding - 1) / kPadding * kPadding;
    const std::span<float> scores = scores_.row(row).first(padded);
    if (begin >= end) {
      std::fill(scores.begin(), scores.end(), 0.0f);
      return;
    }
    if (cap_ > 0) soft_cap(scores.subspan(begin, end - begin), cap_);
    std::fill(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(begin), kMasked);
    std::fill(scores.begin() + static_cast<std::ptrdiff_t>(end), scores.end(), kMasked);
    const float factor = softmax_block(scores, states_[row]);
    if (!first && factor != 1) scale(sum_.row(row), factor);
  }

  void scatter(MatrixView<float> out) {
    for (size_t token = 0; token < tile_.tokens; ++token)
      for (size_t head = 0; head < group_; ++head) {
        const size_t row = token * group_ + head;
        const auto to = out.row(token).subspan((tile_.kv_head * group_ + head) * value_dim_, value_dim_);
        std::memcpy(to.data(), sum_.row(row).data(), to.size_bytes());
        scale(to, 1 / states_[row].sum);
      }
  }

  void write_log_sums(MatrixView<float> log_sums) const {
    for (size_t row = 0; row < rows_; ++row)
      log_sums(row / group_, tile_.kv_head * group_ + row % group_) =
          states_[row].max + std::log(states_[row].sum);
  }

  const ModelConfig& config_;
  int64_t window_;
  float cap_;
  const AttentionTile& tile_;
  size_t dim_, value_dim_, group_, rows_;
  MatrixView<float> query_, sum_, scores_;
  std::vector<SoftmaxState> states_;
};

}  // namespace

size_t attention_scratch_floats(const ModelConfig& config) {
  return tile_rows(config) * (2 * static_cast<size_t>(config.head_dim) + kKeyBlock);
}

void causal_attention(const ModelConfig& config, int64_t window, std::span<const float> sinks,
                      std::span<const DocumentPlace> documents, size_t first, MatrixView<const float> query,
                      MatrixView<const float> key, MatrixView<const float> value, MatrixView<float> out,
                      WorkerScratch& scratch, MatrixView<float> log_sums) {
  const std::vector<AttentionTile> tiles = attention_tiles(config, documents, first, query.rows());
  parallel_for(tiles.size(), 1, [&](size_t begin, size_t, int worker) {
    const AttentionTile& tile = tiles[begin];
    const size_t row = tile.row - first, seen = tile.position + tile.tokens;
    TileAttention(config, window, sinks, tile, scratch.get(worker, attention_scratch_floats(config)))
        .run(query.rows(row, tile.tokens), key.rows(tile.key_first, seen), value.rows(tile.key_first, seen),
             out.rows(row, tile.tokens),
             log_sums.rows() > 0 ? log_sums.rows(row, tile.tokens) : MatrixView<float>());
  });
}

}  // namespace kvcodec
