#include "lib/model/causal_attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/linalg/packed_gemm.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

// The query heads of one key/value head are stacked: a tile has at most kTileRows rows, which is that many
// divided by the group size tokens. A block of scores (kTileRows x kKeyBlock floats, 512 KiB) then stays in
// the second-level cache. Measured on one Zen 4 core from 64 x 256 to 256 x 1024: this does best, at 70 to
// 85% of a large sgemm, counting only pairs that are not masked; from 128 x 256 on all are within 5%.
constexpr size_t kTileRows = 256;

// The first tiles of a document see as many keys as they have tokens, the next ones twice as many, and so on. With AMX oneDNN copies
// the weights of odd numbers of keys: 255 x 64 sums of 423 or 425 keys took 211 to 274 GFLOP/s of a core, of 512 keys 537.
constexpr size_t kTokenStep = 32;

constexpr size_t kKeyBlock = 512;
// softmax_block wants whole vectors.
constexpr size_t kPadding = 16;
static_assert(kKeyBlock % kPadding == 0);

// Going back, two blocks, of weights and of derivatives by scores, take the place of one: half as many keys.
constexpr size_t kGradientKeys = kKeyBlock / 2;

/// Query tokens of one document that are computed together, for one key/value head. The query heads of that head are
/// stacked: a tile has tokens * group_size rows, row t * group_size + h being query head h of the group at token t.
struct QueryTile {
  size_t row;        // of the batch
  size_t key_first;  // row of the document's position 0 among keys
  size_t position, tokens;
  size_t kv_head;
};

/// Tokens of a tile, at most.
size_t tile_tokens(const ModelConfig& config) {
  const size_t about = std::max<size_t>(1, kTileRows / static_cast<size_t>(config.group_size()));
  const size_t step = std::min(kTokenStep, std::bit_floor(about));
  return about / step * step;
}

/// Rows of a tile, at most.
size_t tile_rows(const ModelConfig& config) { return tile_tokens(config) * as_size(config.group_size()); }

/// Those of all rows, the ones with the most keys first: the short ones fill the gaps at the end.
std::vector<QueryTile> tiles_of(const ModelConfig& config, const CausalAttention& attention) {
  std::vector<QueryTile> tiles;
  const size_t size = tile_tokens(config), first = attention.first;
  for (const DocumentPlace& document : attention.documents) {
    const size_t begin = std::max(first, document.first);
    const size_t stop = std::min(first + attention.query.rows(), document.first + document.tokens);
    if (begin >= stop) continue;
    size_t position = document.past + begin - document.first;
    const size_t end = document.past + stop - document.first;
    while (position < end) {
      const size_t next = std::min(end, (position / size + 1) * size);
      const size_t row = document.first + position - document.past;
      for (int head = 0; head < config.num_kv_heads; ++head)
        tiles.push_back({row, document.key_first, position, next - position, as_size(head)});
      position = next;
    }
  }
  std::ranges::stable_sort(tiles, std::greater(), &QueryTile::position);
  return tiles;
}

/// Keys [begin, end) of the document that the token at `position` sees; window: 0 = all before it.
struct VisibleKeys {
  size_t begin, end;
};
VisibleKeys visible_from(size_t position, int64_t window) {
  const size_t reach = window > 0 ? static_cast<size_t>(window) : std::numeric_limits<size_t>::max();
  return {position + 1 > reach ? position + 1 - reach : 0, position + 1};
}

/// The same as places within keys [first, first + count): begin = end where it sees none of them.
VisibleKeys visible_within(size_t position, int64_t window, size_t first, size_t count) {
  const VisibleKeys visible = visible_from(position, window);
  return {std::clamp(visible.begin, first, first + count) - first,
          std::clamp(visible.end, first, first + count) - first};
}

/// Rows of a tile, used by the forward and the backward pass.
class TileRows {
 protected:
  TileRows(const ModelConfig& config, const CausalAttention& attention, const QueryTile& tile)
      : attention_(attention),
        tile_(tile),
        cap_(static_cast<float>(config.attention_softcap)),
        dim_(as_size(config.head_dim)),
        group_(as_size(config.group_size())),
        rows_(tile.tokens * group_) {}

  float score_scale() const { return 1.0f / std::sqrt(static_cast<float>(dim_)); }
  size_t query_head(size_t row) const { return tile_.kv_head * group_ + row % group_; }
  size_t token(size_t row) const { return tile_.row - attention_.first + row / group_; }
  VisibleKeys visible(size_t row, size_t first, size_t count) const {
    return visible_within(tile_.position + row / group_, attention_.window, first, count);
  }
  size_t end() const { return tile_.position + tile_.tokens; }
  /// The first key that any row sees, or one before it, where a block of so many begins.
  size_t first_block(size_t keys) const {
    return visible_from(tile_.position, attention_.window).begin / keys * keys;
  }
  /// A row's part of what tokens have for all query heads.
  template <class T>
  std::span<T> head_of(MatrixView<T> rows, size_t row, size_t dim) const {
    return rows.row(token(row)).subspan(query_head(row) * dim, dim);
  }
  /// Writes all of these parts, times a factor, to out, (rows, dim) without gaps.
  void gather(MatrixView<const float> rows, float factor, MatrixView<float> out) const {
    for (size_t row = 0; row < rows_; row += group_)
      scale(rows.row(token(row)).subspan(query_head(row) * dim_, group_ * dim_), factor,
            {out.row(row).data(), group_ * dim_});
  }

  const CausalAttention& attention_;
  const QueryTile& tile_;
  const float cap_;
  const size_t dim_, group_, rows_;
};

void round(MatrixView<const float> rows, MatrixView<uint16_t> out) {
  for (size_t i = 0; i < rows.rows(); ++i) narrow(DType::bf16, rows.row(i), out.row(i));
}

/// Keys or values of a batch in bf16, head by head, since products are fastest of rows without gaps. Behind the last row there
/// are kPadding more, of zeros.
class RoundedRows {
 public:
  RoundedRows() = default;
  RoundedRows(size_t rows, size_t heads, size_t dim)
      : count_(rows), heads_(heads), rows_(heads * rows + kPadding, dim) {}

  /// Takes over rows [begin, end) of all heads.
  void take(MatrixView<const float> rows, size_t begin, size_t end) {
    const size_t dim = rows_.cols();
    for (size_t head = 0; head < heads_; ++head)
      round(rows.rows(begin, end - begin).columns(head * dim, dim),
            rows_.view().rows(head * count_ + begin, end - begin));
  }
  MatrixView<const uint16_t> of(size_t head, size_t first, size_t count) const {
    return rows_.view().rows(head * count_ + first, count);
  }

 private:
  size_t count_ = 0, heads_ = 0;
  Matrix<uint16_t> rows_;
};

/// Keys and values of a batch where products are made in bf16.
struct RoundedCache {
  RoundedRows key, value;
};

class TileAttention : TileRows {
 public:
  TileAttention(const ModelConfig& config, const CausalAttention& attention, const RoundedCache& rounded,
                const QueryTile& tile, float* scratch)
      : TileRows(config, attention, tile),
        rounded_(rounded),
        value_dim_(as_size(config.value_dim())),
        query_(scratch, rows_, dim_),
        sum_(scratch + rows_ * dim_, rows_, value_dim_),
        scores_(scratch + 2 * rows_ * dim_, rows_, kKeyBlock),
        rounded_query_(reinterpret_cast<uint16_t*>(scores_.data() + rows_ * kKeyBlock), rows_, dim_),
        rounded_weights_(rounded_query_.data() + rows_ * dim_),
        in_bf16_(attention.compute == Compute::bf16),
        states_(rows_) {
    for (size_t row = 0; row < rows_ && !attention.sinks.empty(); ++row)
      states_[row] = {attention.sinks[query_head(row)], 1};
  }

  void run() {
    gather(attention_.query, score_scale(), query_);
    if (in_bf16_) round(query_, rounded_query_);
    const size_t seen = first_block(kKeyBlock);
    for (size_t block = seen; block < end(); block += kKeyBlock) {
      const size_t width = std::min(kKeyBlock, end() - block);
      scores_ = {scores_.data(), rows_, round_up(width, kPadding)};
      score(tile_.key_first + block, width);
      for (size_t row = 0; row < rows_; ++row) weigh(row, block, width, block == seen);
      add_up(tile_.key_first + block, width, block == seen);
    }
    for (size_t row = 0; row < rows_; ++row) {
      scale(sum_.row(row), 1 / states_[row].sum, head_of(attention_.out, row, value_dim_));
      if (attention_.log_sums.rows() > 0)
        attention_.log_sums(token(row), query_head(row)) = states_[row].max + std::log(states_[row].sum);
    }
  }

 private:
  /// Scores of `width` keys from row `begin` of the batch on. In bf16 also of what stands behind them, so that rows have no
  /// gaps; it is masked.
  void score(size_t begin, size_t width) const {
    if (in_bf16_)
      gemm_bf16(rounded_query_, rounded_.key.of(tile_.kv_head, begin, scores_.cols()), Transpose::yes, false,
                scores_);
    else
      gemm(1, query_, transposed(attention_.key.rows(begin, width).columns(tile_.kv_head * dim_, dim_)), 0,
           scores_.columns(0, width));
  }

  /// Adds values, weighed, to the sums so far; before the first block there are none.
  void add_up(size_t begin, size_t width, bool first) {
    if (in_bf16_)
      gemm_bf16({rounded_weights_, rows_, width}, rounded_.value.of(tile_.kv_head, begin, width),
                Transpose::no, !first, sum_);
    else
      gemm(1, scores_.columns(0, width),
           attention_.value.rows(begin, width).columns(tile_.kv_head * value_dim_, value_dim_),
           first ? 0.0f : 1.0f, sum_);
  }

  /// Masks one row of scores, turns it into weights (in place, and rounded), and scales the row's sum so far; before the first
  /// block there is none. Rows come in order.
  void weigh(size_t row, size_t block, size_t width, bool first) {
    constexpr float kMasked = -std::numeric_limits<float>::infinity();
    const auto [begin, end] = visible(row, block, width);
    const std::span<float> scores = scores_.row(row);
    // Padding of the rounded row lies where the next row begins, which is written later.
    const std::span<uint16_t> rounded(rounded_weights_ + row * width, scores.size());
    if (begin >= end) {
      if (in_bf16_)
        std::ranges::fill(rounded, uint16_t{0});
      else
        std::ranges::fill(scores, 0.0f);
      return;
    }
    if (cap_ > 0) soft_cap(scores.subspan(begin, end - begin), cap_);
    std::fill(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(begin), kMasked);
    std::fill(scores.begin() + static_cast<std::ptrdiff_t>(end), scores.end(), kMasked);
    const float factor = softmax_block(scores, states_[row]);
    if (in_bf16_) narrow(DType::bf16, scores, rounded);
    if (!first && factor != 1) scale(sum_.row(row), factor);
  }

  const RoundedCache& rounded_;
  const size_t value_dim_;
  MatrixView<float> query_, sum_, scores_;
  MatrixView<uint16_t> rounded_query_;
  uint16_t* rounded_weights_;  // rows of the block's width, without gaps
  const bool in_bf16_;
  std::vector<SoftmaxState> states_;
};

/// Rounds the rows of the batch that tiles see: blocks of keys that begin before what a window shows included.
RoundedCache round_seen(const ModelConfig& config, const CausalAttention& attention,
                        std::span<const QueryTile> tiles) {
  const auto heads = as_size(config.num_kv_heads);
  RoundedCache rounded{{attention.key.rows(), heads, as_size(config.head_dim)},
                       {attention.value.rows(), heads, as_size(config.value_dim())}};
  struct Range {
    size_t begin, end;
  };
  std::map<size_t, Range> documents;  // by the row of their position 0
  for (const QueryTile& tile : tiles) {
    const size_t seen = visible_from(tile.position, attention.window).begin / kKeyBlock * kKeyBlock;
    const size_t begin = tile.key_first + seen, end = tile.key_first + tile.position + tile.tokens;
    const auto [place, added] = documents.try_emplace(tile.key_first, Range{begin, end});
    if (!added) place->second = {std::min(place->second.begin, begin), std::max(place->second.end, end)};
  }
  constexpr size_t kGrain = 64;
  for (const auto& [document, range] : documents)
    parallel_for(range.end - range.begin, kGrain, [&, seen = range](size_t begin, size_t end, int) {
      rounded.key.take(attention.key, seen.begin + begin, seen.begin + end);
      rounded.value.take(attention.value, seen.begin + begin, seen.begin + end);
    });
  return rounded;
}

/// One tile of queries, and what a block of keys makes of it: weights are made anew from the sums that are kept.
class TileGradients : TileRows {
 public:
  TileGradients(const ModelConfig& config, const CausalAttention& done, MatrixView<const float> by_out,
                const QueryTile& tile, float* scratch)
      : TileRows(config, done, tile),
        query_(scratch, rows_, dim_),
        by_out_(query_.data() + rows_ * dim_, rows_, dim_),
        sum_(by_out_.data() + rows_ * dim_, rows_, dim_),
        weights_(sum_.data() + rows_ * dim_, rows_, kGradientKeys),
        by_scores_(weights_.data() + rows_ * kGradientKeys, rows_, kGradientKeys),
        by_weights_(rows_) {
    gather(done.query, score_scale(), query_);
    gather(by_out, 1, by_out_);
    for (size_t row = 0; row < rows_; ++row)
      by_weights_[row] = static_cast<float>(dot(by_out_.row(row), head_of(done.out, row, dim_)));
  }

  /// Writes the derivatives by the tile's queries.
  void write_by_queries(MatrixView<float> queries) {
    const size_t seen = first_block(kGradientKeys);
    for (size_t block = seen; block < end(); block += kGradientKeys) {
      weigh(block, std::min(kGradientKeys, end() - block));
      gemm(score_scale(), by_scores(), keys_of(attention_.key, block), block == seen ? 0.0f : 1.0f, sum_);
    }
    for (size_t row = 0; row < rows_; ++row)
      std::ranges::copy(sum_.row(row), head_of(queries, row, dim_).begin());
  }

  /// keys, values (count, head_dim) = or += what this tile says of the derivatives by those from `first` on.
  void add_to_keys(size_t first, MatrixView<float> keys, MatrixView<float> values, bool overwrite) {
    weigh(first, keys.rows());
    const float kept = overwrite ? 0.0f : 1.0f;
    gemm(1, transposed(by_scores()), query_, kept, keys);  // the scale is in the query
    gemm(1, transposed(weights()), by_out_, kept, values);
  }

 private:
  /// Weights and derivatives by scores of keys [first, first + count), count <= kGradientKeys.
  void weigh(size_t first, size_t count) {
    width_ = count;
    gemm(1, query_, transposed(keys_of(attention_.key, first)), 0, weights());
    gemm(1, by_out_, transposed(keys_of(attention_.value, first)), 0, by_scores());
    for (size_t row = 0; row < rows_; ++row) weigh_row(row, first);
  }

  MatrixView<const float> keys_of(MatrixView<const float> rows, size_t first) const {
    return rows.rows(first, width_).columns(tile_.kv_head * dim_, dim_);
  }
  MatrixView<float> weights() const { return {weights_.data(), rows_, width_, kGradientKeys}; }
  MatrixView<float> by_scores() const { return {by_scores_.data(), rows_, width_, kGradientKeys}; }

  /// In: scores, and derivatives by weights. A softmax's derivative by a score is its weight times what the derivative
  /// by that weight is above their weighted mean.
  void weigh_row(size_t row, size_t first) {
    const auto [begin, end] = visible(row, first, width_);
    const std::span<float> weights = weights_.row(row).first(width_),
                           gradients = by_scores_.row(row).first(width_);
    for (const std::span<float>& of : {weights, gradients}) {
      std::fill(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(begin), 0.0f);
      std::fill(of.begin() + static_cast<std::ptrdiff_t>(end), of.end(), 0.0f);
    }
    if (begin >= end) return;
    const std::span<float> seen = weights.subspan(begin, end - begin),
                           by_seen = gradients.subspan(begin, end - begin);
    const float mean = by_weights_[row], log_sum = attention_.log_sums(token(row), query_head(row));
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

  size_t width_ = 0;
  MatrixView<float> query_, by_out_, sum_, weights_, by_scores_;
  std::vector<float> by_weights_;  // the weighted mean of the derivatives by a row's weights
};

}  // namespace

size_t attention_scratch_floats(const ModelConfig& config) {
  const size_t floats = 2 * as_size(config.head_dim) + kKeyBlock,
               rounded = as_size(config.head_dim) + kKeyBlock;  // two to a float
  return tile_rows(config) * (floats + (rounded + 1) / 2) + kPadding;
}

void causal_attention(const ModelConfig& config, const CausalAttention& attention, WorkerScratch& scratch) {
  const std::vector<QueryTile> tiles = tiles_of(config, attention);
  RoundedCache rounded;
  if (attention.compute == Compute::bf16) rounded = round_seen(config, attention, tiles);
  parallel_for(tiles.size(), 1, [&](size_t begin, size_t, int worker) {
    TileAttention(config, attention, rounded, tiles[begin],
                  scratch.get(worker, attention_scratch_floats(config)))
        .run();
  });
}

size_t attention_gradient_scratch_floats(const ModelConfig& config) {
  return tile_rows(config) * (3 * as_size(config.head_dim) + 2 * kGradientKeys);
}

void gradients_by_query(const ModelConfig& config, const CausalAttention& done,
                        MatrixView<const float> by_out, MatrixView<float> queries, WorkerScratch& scratch) {
  const std::vector<QueryTile> tiles = tiles_of(config, done);
  parallel_for(tiles.size(), 1, [&](size_t begin, size_t, int worker) {
    TileGradients(config, done, by_out, tiles[begin],
                  scratch.get(worker, attention_gradient_scratch_floats(config)))
        .write_by_queries(queries);
  });
}

void gradients_by_keys(const ModelConfig& config, const CausalAttention& done, MatrixView<const float> by_out,
                       const PastRows& by_past, WorkerScratch& scratch) {
  const size_t dim = as_size(config.head_dim), keys = by_past.keys.rows(),
               heads = as_size(config.num_kv_heads);
  const std::vector<QueryTile> tiles = tiles_of(config, done);
  const size_t blocks = (keys + kGradientKeys - 1) / kGradientKeys;
  parallel_for(blocks * heads, 1, [&](size_t item, size_t, int worker) {
    const size_t head = item % heads, first = item / heads * kGradientKeys;
    const size_t count = std::min(kGradientKeys, keys - first);
    const MatrixView<float> own_keys = by_past.keys.rows(first, count).columns(head * dim, dim),
                            own_values = by_past.values.rows(first, count).columns(head * dim, dim);
    bool untouched = true;
    for (const QueryTile& tile : tiles) {
      // True if any query of the tile sees any of these keys.
      if (tile.kv_head != head || first >= tile.position + tile.tokens ||
          visible_from(tile.position, done.window).begin >= first + count)
        continue;
      TileGradients(config, done, by_out, tile,
                    scratch.get(worker, attention_gradient_scratch_floats(config)))
          .add_to_keys(first, own_keys, own_values, untouched);
      untouched = false;
    }
    for (const MatrixView<float>& rows : {own_keys, own_values})
      for (size_t i = 0; i < rows.rows() && untouched; ++i) std::ranges::fill(rows.row(i), 0.0f);
  });
}

}  // namespace kvcodec
