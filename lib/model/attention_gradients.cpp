#include "lib/model/attention_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/model/attention_tiles.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

// Two blocks, of weights and of derivatives by scores, take the place of one on the way there (kKeyBlock of
// causal_attention.cpp): half as many keys.
constexpr size_t kBlockKeys = 256;

/// One tile of queries, and what a block of keys makes of it: weights are made anew from the sums that are kept.
class TileGradients {
 public:
  TileGradients(const ModelConfig& config, const AttentionDone& done, const AttentionTile& tile,
                float* scratch)
      : done_(done),
        tile_(tile),
        cap_(static_cast<float>(config.attention_softcap)),
        dim_(static_cast<size_t>(config.head_dim)),
        group_(static_cast<size_t>(config.group_size())),
        rows_(tile.tokens * group_),
        query_(scratch, rows_, dim_),
        by_out_(scratch + rows_ * dim_, rows_, dim_),
        weights_(scratch + 2 * rows_ * dim_, rows_, kBlockKeys),
        by_scores_(weights_.data() + rows_ * kBlockKeys, rows_, kBlockKeys),
        by_weights_(rows_) {
    gather_heads(config, tile, of_tile(done.query), score_scale(), query_);
    gather_heads(config, tile, of_tile(done.by_out), 1, by_out_);
    for (size_t row = 0; row < rows_; ++row)
      by_weights_[row] = static_cast<float>(dot(by_out_.row(row), head_of_token(done.out, row)));
  }

  /// Weights and derivatives by scores of keys [first, first + count), count <= kBlockKeys.
  void weigh(size_t first, size_t count) {
    width_ = count;
    gemm(1, query_, Transpose::no, keys_of(done_.key, first), Transpose::yes, 0, weights());
    gemm(1, by_out_, Transpose::no, keys_of(done_.value, first), Transpose::yes, 0, by_scores());
    for (size_t row = 0; row < rows_; ++row) weigh_row(row, first);
  }

  /// out (rows of the tile, head_dim) = or += what this block's keys say of the derivatives by queries.
  void add_to_queries(size_t first, MatrixView<float> out, bool overwrite) const {
    gemm(score_scale(), by_scores(), Transpose::no, keys_of(done_.key, first), Transpose::no,
         overwrite ? 0.0f : 1.0f, out);
  }

  /// keys, values (count, head_dim) = or += what this tile says of the derivatives by them.
  void add_to_keys(MatrixView<float> keys, MatrixView<float> values, bool overwrite) const {
    const float kept = overwrite ? 0.0f : 1.0f;
    gemm(1, by_scores(), Transpose::yes, query_, Transpose::no, kept, keys);  // the scale is in the query
    gemm(1, weights(), Transpose::yes, by_out_, Transpose::no, kept, values);
  }

  size_t rows() const { return rows_; }

 private:
  float score_scale() const { return 1.0f / std::sqrt(static_cast<float>(dim_)); }

  MatrixView<const float> of_tile(MatrixView<const float> rows) const {
    return rows.rows(tile_.row, tile_.tokens);
  }
  MatrixView<const float> keys_of(MatrixView<const float> rows, size_t first) const {
    return rows.rows(first, width_).columns(tile_.kv_head * dim_, dim_);
  }
  std::span<const float> head_of_token(MatrixView<const float> rows, size_t row) const {
    return rows.row(tile_.row + row / group_).subspan(query_head(row) * dim_, dim_);
  }
  size_t query_head(size_t row) const { return tile_.kv_head * group_ + row % group_; }

  MatrixView<float> weights() const { return {weights_.data(), rows_, width_, kBlockKeys}; }
  MatrixView<float> by_scores() const { return {by_scores_.data(), rows_, width_, kBlockKeys}; }

  /// In: scores, and derivatives by weights. A softmax's derivative by a score is its weight times what the derivative
  /// by that weight is above their weighted mean.
  void weigh_row(size_t row, size_t first) {
    const auto [begin, end] = visible_within(tile_.position + row / group_, done_.window, first, width_);
    const std::span<float> weights = weights_.row(row).first(width_),
                           gradients = by_scores_.row(row).first(width_);
    for (const std::span<float>& of : {weights, gradients}) {
      std::fill(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(begin), 0.0f);
      std::fill(of.begin() + static_cast<std::ptrdiff_t>(end), of.end(), 0.0f);
    }
    if (begin >= end) return;
    const std::span<float> seen = weights.subspan(begin, end - begin),
                           by_seen = gradients.subspan(begin, end - begin);
    const float mean = by_weights_[row], log_sum = done_.log_sums(tile_.row + row / group_, query_head(row));
    for (float& value : by_seen) value -= mean;
    if (cap_ > 0) through_cap(seen, by_seen);
    for (float& value : seen) value -= log_sum;
    exp_nonpositive(seen);
    for (size_t i = 0; i < seen.size(); ++i) by_seen[i] *= seen[i];
  }

  void through_cap(std::span<float> scores, std::span<float> by_scores) const {
    soft_cap(scores, cap_);
    for (size_t i = 0; i < scores.size(); ++i) {
      const float part = scores[i] / cap_;
      by_scores[i] *= 1 - part * part;
    }
  }

  const AttentionDone& done_;
  const AttentionTile& tile_;
  float cap_;
  size_t dim_, group_, rows_, width_ = 0;
  MatrixView<float> query_, by_out_, weights_, by_scores_;
  std::vector<float> by_weights_;  // the weighted mean of the derivatives by a row's weights
};

/// A block of keys of one head.
struct KeyBlock {
  size_t kv_head, first, count;
};

std::vector<KeyBlock> key_blocks(const ModelConfig& config, size_t keys) {
  std::vector<KeyBlock> blocks;
  for (size_t first = 0; first < keys; first += kBlockKeys)
    for (int head = 0; head < config.num_kv_heads; ++head)
      blocks.push_back({static_cast<size_t>(head), first, std::min(kBlockKeys, keys - first)});
  return blocks;
}

/// Whether any query of the tile sees any of these keys.
bool meets(const AttentionTile& tile, int64_t window, const KeyBlock& block) {
  return tile.kv_head == block.kv_head && block.first < tile.position + tile.tokens &&
         visible_from(tile.position, window).begin < block.first + block.count;
}

}  // namespace

size_t attention_gradient_scratch_floats(const ModelConfig& config) {
  return tile_rows(config) * (3 * static_cast<size_t>(config.head_dim) + 2 * kBlockKeys);
}

void gradients_by_query(const ModelConfig& config, const AttentionDone& done, MatrixView<float> out,
                        WorkerScratch& scratch) {
  const size_t group = static_cast<size_t>(config.group_size()), dim = static_cast<size_t>(config.head_dim);
  const std::vector<AttentionTile> tiles = attention_tiles(config, {&done.document, 1}, 0, done.query.rows());
  parallel_for(tiles.size(), 1, [&](size_t begin, size_t, int worker) {
    const AttentionTile& tile = tiles[begin];
    float* const floats = scratch.get(worker, attention_gradient_scratch_floats(config));
    TileGradients gradients(config, done, tile, floats);
    const MatrixView<float> sum(floats + gradients.rows() * 2 * (dim + kBlockKeys), gradients.rows(), dim);
    const size_t end = tile.position + tile.tokens;
    const size_t seen = visible_from(tile.position, done.window).begin / kBlockKeys * kBlockKeys;
    for (size_t block = seen; block < end; block += kBlockKeys) {
      gradients.weigh(block, std::min(kBlockKeys, end - block));
      gradients.add_to_queries(block, sum, block == seen);
    }
    for (size_t row = 0; row < sum.rows(); ++row)
      std::ranges::copy(
          sum.row(row),
          out.row(tile.row + row / group).subspan((tile.kv_head * group + row % group) * dim, dim).begin());
  });
}

void gradients_by_keys(const ModelConfig& config, const AttentionDone& done, MatrixView<float> keys,
                       MatrixView<float> values, WorkerScratch& scratch) {
  const size_t dim = static_cast<size_t>(config.head_dim);
  const std::vector<AttentionTile> tiles = attention_tiles(config, {&done.document, 1}, 0, done.query.rows());
  const std::vector<KeyBlock> blocks = key_blocks(config, keys.rows());
  parallel_for(blocks.size(), 1, [&](size_t begin, size_t, int worker) {
    const KeyBlock& block = blocks[begin];
    const auto of_block = [&](MatrixView<float> rows) {
      return rows.rows(block.first, block.count).columns(block.kv_head * dim, dim);
    };
    bool first = true;
    for (const AttentionTile& tile : tiles) {
      if (!meets(tile, done.window, block)) continue;
      TileGradients gradients(config, done, tile,
                              scratch.get(worker, attention_gradient_scratch_floats(config)));
      gradients.weigh(block.first, block.count);
      gradients.add_to_keys(of_block(keys), of_block(values), first);
      first = false;
    }
    if (!first) return;
    for (const MatrixView<float>& rows : {of_block(keys), of_block(values)})  // nobody looks at them
      for (size_t i = 0; i < rows.rows(); ++i) std::ranges::fill(rows.row(i), 0.0f);
  });
}

}  // namespace kvcodec
