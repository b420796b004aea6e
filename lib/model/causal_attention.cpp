#include "lib/model/causal_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/linalg/packed_gemm.hpp"
#include "lib/model/attention_tiles.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

// With tiles of attention_tiles.cpp.
constexpr size_t kKeyBlock = 512;
// softmax_block wants whole vectors.
constexpr size_t kPadding = 16;
static_assert(kKeyBlock % kPadding == 0);

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

/// What all tiles of a batch read.
struct Rows {
  MatrixView<const float> key, value;
  RoundedRows rounded_key, rounded_value;  // where products are made in bf16
};

class TileAttention {
 public:
  TileAttention(const ModelConfig& config, int64_t window, std::span<const float> sinks, Compute compute,
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
        rounded_query_(reinterpret_cast<uint16_t*>(scores_.data() + rows_ * kKeyBlock), rows_, dim_),
        rounded_weights_(rounded_query_.data() + rows_ * dim_),
        in_bf16_(compute == Compute::bf16),
        states_(rows_) {
    for (size_t row = 0; row < rows_ && !sinks.empty(); ++row)
      states_[row] = {sinks[tile.kv_head * group_ + row % group_], 1};
  }

  /// query, out: rows of the tile's tokens, all heads. log_sums: as query, or empty.
  void run(MatrixView<const float> query, const Rows& rows, MatrixView<float> out,
           MatrixView<float> log_sums) {
    gather_heads(config_, tile_, query, 1.0f / std::sqrt(static_cast<float>(dim_)), query_);
    if (in_bf16_) round(query_, rounded_query_);
    const size_t seen = visible_from(tile_.position, window_).begin / kKeyBlock * kKeyBlock;
    const size_t end = tile_.position + tile_.tokens;
    for (size_t block = seen; block < end; block += kKeyBlock) {
      const size_t width = std::min(kKeyBlock, end - block);
      scores_ = {scores_.data(), rows_, round_up(width, kPadding)};
      score(rows, tile_.key_first + block, width);
      for (size_t row = 0; row < rows_; ++row) weigh(row, block, width, block == seen);
      add_up(rows, tile_.key_first + block, width, block == seen);
    }
    scatter(out);
    if (log_sums.data()) write_log_sums(log_sums);
  }

 private:
  /// Scores of `width` keys from row `begin` of the batch on. In bf16 also of what stands behind them, so that rows have no
  /// gaps; it is masked.
  void score(const Rows& rows, size_t begin, size_t width) const {
    if (in_bf16_)
      gemm_bf16(rounded_query_, rows.rounded_key.of(tile_.kv_head, begin, scores_.cols()), Transpose::yes,
                false, scores_);
    else
      gemm(1, query_, Transpose::no, rows.key.rows(begin, width).columns(tile_.kv_head * dim_, dim_),
           Transpose::yes, 0, scores_.columns(0, width));
  }

  /// Adds values, weighed, to the sums so far; before the first block there are none.
  void add_up(const Rows& rows, size_t begin, size_t width, bool first) {
    if (in_bf16_)
      gemm_bf16({rounded_weights_, rows_, width}, rows.rounded_value.of(tile_.kv_head, begin, width),
                Transpose::no, !first, sum_);
    else
      gemm(1, scores_.columns(0, width), Transpose::no,
           rows.value.rows(begin, width).columns(tile_.kv_head * value_dim_, value_dim_), Transpose::no,
           first ? 0.0f : 1.0f, sum_);
  }

  /// Masks one row of scores, turns it into weights (in place, or rounded), and scales the row's sum so far; before the first
  /// block there is none. Rows come in order.
  void weigh(size_t row, size_t block, size_t width, bool first) {
    constexpr float kMasked = -std::numeric_limits<float>::infinity();
    const auto [begin, end] = visible_within(tile_.position + row / group_, window_, block, width);
    const std::span<float> scores = scores_.row(row);
    // What the rounded row has of padding is where the next one begins, which comes later.
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
    const float factor =
        in_bf16_ ? softmax_block(scores, rounded, states_[row]) : softmax_block(scores, states_[row]);
    if (!first && factor != 1) scale(sum_.row(row), factor);
  }

  void scatter(MatrixView<float> out) {
    for (size_t token = 0; token < tile_.tokens; ++token)
      for (size_t head = 0; head < group_; ++head) {
        const size_t row = token * group_ + head;
        const auto to = out.row(token).subspan((tile_.kv_head * group_ + head) * value_dim_, value_dim_);
        scale(sum_.row(row), 1 / states_[row].sum, to);
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
  MatrixView<uint16_t> rounded_query_;
  uint16_t* rounded_weights_;  // rows of the block's width, without gaps
  bool in_bf16_;
  std::vector<SoftmaxState> states_;
};

/// Rounds the rows of the batch that tiles see: blocks of keys that begin before what a window shows included.
void round_seen(std::span<const AttentionTile> tiles, int64_t window, Rows& rows) {
  struct Range {
    size_t begin, end;
  };
  std::map<size_t, Range> documents;  // by the row of their position 0
  for (const AttentionTile& tile : tiles) {
    const size_t begin = tile.key_first + visible_from(tile.position, window).begin / kKeyBlock * kKeyBlock;
    const size_t end = tile.key_first + tile.position + tile.tokens;
    const auto [place, added] = documents.try_emplace(tile.key_first, Range{begin, end});
    if (!added) place->second = {std::min(place->second.begin, begin), std::max(place->second.end, end)};
  }
  constexpr size_t kGrain = 64;
  for (const auto& [document, range] : documents)
    parallel_for(range.end - range.begin, kGrain, [&, seen = range](size_t begin, size_t end, int) {
      rows.rounded_key.take(rows.key, seen.begin + begin, seen.begin + end);
      rows.rounded_value.take(rows.value, seen.begin + begin, seen.begin + end);
    });
}

}  // namespace

size_t attention_scratch_floats(const ModelConfig& config) {
  const size_t floats = 2 * static_cast<size_t>(config.head_dim) + kKeyBlock,
               rounded = static_cast<size_t>(config.head_dim) + kKeyBlock;  // two to a float
  return tile_rows(config) * (floats + (rounded + 1) / 2) + kPadding;
}

void causal_attention(const ModelConfig& config, int64_t window, std::span<const float> sinks,
                      Compute compute, std::span<const DocumentPlace> documents, size_t first,
                      MatrixView<const float> query, MatrixView<const float> key,
                      MatrixView<const float> value, MatrixView<float> out, WorkerScratch& scratch,
                      MatrixView<float> log_sums) {
  const std::vector<AttentionTile> tiles = attention_tiles(config, documents, first, query.rows());
  Rows rows{key, value, {}, {}};
  if (compute == Compute::bf16) {
    const auto heads = static_cast<size_t>(config.num_kv_heads);
    rows.rounded_key = RoundedRows(key.rows(), heads, static_cast<size_t>(config.head_dim));
    rows.rounded_value = RoundedRows(value.rows(), heads, static_cast<size_t>(config.value_dim()));
    round_seen(tiles, window, rows);
  }
  parallel_for(tiles.size(), 1, [&](size_t begin, size_t, int worker) {
    const AttentionTile& tile = tiles[begin];
    const size_t row = tile.row - first;
    TileAttention(config, window, sinks, compute, tile, scratch.get(worker, attention_scratch_floats(config)))
        .run(query.rows(row, tile.tokens), rows, out.rows(row, tile.tokens),
             log_sums.rows() > 0 ? log_sums.rows(row, tile.tokens) : MatrixView<float>());
  });
}

}  // namespace kvcodec
