#include "lib/model/causal_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

// The query heads of one key/value head are stacked: a tile has about kTileRows rows, which is that many
// divided by the group size tokens. A block of scores (kTileRows x kKeyBlock floats, 512 KiB) then stays in
// the second-level cache. Measured on one Zen 4 core from 64 x 256 to 256 x 1024: this does best, at 70 to
// 85% of a large sgemm, counting only pairs that are not masked; from 128 x 256 on all are within 5%.
constexpr size_t kTileRows = 256;
constexpr size_t kKeyBlock = 512;
// softmax_block wants whole vectors.
constexpr size_t kPadding = 16;

size_t tile_tokens(const ModelConfig& config) {
  return std::max<size_t>(1, kTileRows / static_cast<size_t>(config.group_size()));
}

/// Query tokens of one document that are computed together, for one key/value head.
struct Tile {
  size_t row;        // of the batch
  size_t key_first;  // row of the document's position 0 among keys
  size_t position, tokens;
  size_t kv_head;
};

std::vector<Tile> cut_in_tiles(const ModelConfig& config, std::span<const DocumentPlace> documents,
                               size_t first, size_t rows) {
  std::vector<Tile> tiles;
  const size_t size = tile_tokens(config);
  for (const DocumentPlace& document : documents) {
    const size_t begin = std::max(first, document.first);
    const size_t stop = std::min(first + rows, document.first + document.tokens);
    if (begin >= stop) continue;
    size_t position = document.past + begin - document.first;
    const size_t end = document.past + stop - document.first;
    while (position < end) {
      const size_t next = std::min(end, (position / size + 1) * size);
      const size_t row = document.first + position - document.past;
      for (int head = 0; head < config.num_kv_heads; ++head)
        tiles.push_back({row, document.key_first, position, next - position, static_cast<size_t>(head)});
      position = next;
    }
  }
  // Those with the most keys first: the short ones fill the gaps at the end.
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const Tile& a, const Tile& b) { return a.position > b.position; });
  return tiles;
}

/// Keys [begin, end) of the document that the token at `position` sees.
struct Visible {
  size_t begin, end;
};
Visible visible_from(size_t position, int64_t window) {
  const size_t reach = window > 0 ? static_cast<size_t>(window) : std::numeric_limits<size_t>::max();
  return {position + 1 > reach ? position + 1 - reach : 0, position + 1};
}

class TileAttention {
 public:
  TileAttention(const ModelConfig& config, int64_t window, std::span<const float> sinks, const Tile& tile,
                float* scratch)
      : window_(window),
        cap_(static_cast<float>(config.attention_softcap)),
        tile_(tile),
        dim_(static_cast<size_t>(config.head_dim)),
        group_(static_cast<size_t>(config.group_size())),
        rows_(tile.tokens * group_),
        query_(scratch, rows_, dim_),
        sum_(scratch + rows_ * dim_, rows_, dim_),
        scores_(scratch + 2 * rows_ * dim_, rows_, kKeyBlock),
        states_(rows_) {
    for (size_t row = 0; row < rows_ && !sinks.empty(); ++row)
      states_[row] = {sinks[tile.kv_head * group_ + row % group_], 1};
  }

  /// query, out: rows of the tile's tokens, all heads. key, value: rows of the document.
  void run(MatrixView<const float> query, MatrixView<const float> key, MatrixView<const float> value,
           MatrixView<float> out) {
    gather(query);
    const size_t seen = visible_from(tile_.position, window_).begin / kKeyBlock * kKeyBlock;
    const size_t end = tile_.position + tile_.tokens;
    for (size_t block = seen; block < end; block += kKeyBlock) {
      const size_t width = std::min(kKeyBlock, end - block);
      const MatrixView<float> scores(scores_.data(), rows_, width, kKeyBlock);
      gemm(1, query_, Transpose::no, head_of(key, block, width), Transpose::yes, 0, scores);
      for (size_t row = 0; row < rows_; ++row) weigh(row, block, width, block == seen);
      gemm(1, scores, Transpose::no, head_of(value, block, width), Transpose::no, block == seen ? 0.0f : 1.0f,
           sum_);
    }
    scatter(out);
  }

 private:
  MatrixView<const float> head_of(MatrixView<const float> rows, size_t first, size_t count) const {
    return rows.rows(first, count).columns(tile_.kv_head * dim_, dim_);
  }

  /// Row t * group + h of the tile is query head h of the group at token t.
  void gather(MatrixView<const float> query) {
    const float factor = 1.0f / std::sqrt(static_cast<float>(dim_));
    for (size_t token = 0; token < tile_.tokens; ++token) {
      const auto heads = query.row(token).subspan(tile_.kv_head * group_ * dim_, group_ * dim_);
      const std::span<float> to(query_.row(token * group_).data(), group_ * dim_);
      std::memcpy(to.data(), heads.data(), to.size_bytes());
      scale(to, factor);
    }
  }

  /// Masks one row of scores, turns it into weights, and scales the row's sum so far; before the first block there is
  /// none.
  void weigh(size_t row, size_t block, size_t width, bool first) {
    constexpr float kMasked = -std::numeric_limits<float>::infinity();
    const Visible visible = visible_from(tile_.position + row / group_, window_);
    const size_t begin = std::clamp(visible.begin, block, block + width) - block;
    const size_t end = std::clamp(visible.end, block, block + width) - block;
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
        const auto to = out.row(token).subspan((tile_.kv_head * group_ + head) * dim_, dim_);
        std::memcpy(to.data(), sum_.row(row).data(), to.size_bytes());
        scale(to, 1 / states_[row].sum);
      }
  }

  int64_t window_;
  float cap_;
  const Tile& tile_;
  size_t dim_, group_, rows_;
  MatrixView<float> query_, sum_, scores_;
  std::vector<SoftmaxState> states_;
};

}  // namespace

size_t attention_scratch_floats(const ModelConfig& config) {
  const size_t rows = tile_tokens(config) * static_cast<size_t>(config.group_size());
  return rows * (2 * static_cast<size_t>(config.head_dim) + kKeyBlock);
}

void causal_attention(const ModelConfig& config, int64_t window, std::span<const float> sinks,
                      std::span<const DocumentPlace> documents, size_t first, MatrixView<const float> query,
                      MatrixView<const float> key, MatrixView<const float> value, MatrixView<float> out,
                      WorkerScratch& scratch) {
  const std::vector<Tile> tiles = cut_in_tiles(config, documents, first, query.rows());
  parallel_for(tiles.size(), 1, [&](size_t begin, size_t, int worker) {
    const Tile& tile = tiles[begin];
    const size_t row = tile.row - first, seen = tile.position + tile.tokens;
    TileAttention(config, window, sinks, tile, scratch.get(worker, attention_scratch_floats(config)))
        .run(query.rows(row, tile.tokens), key.rows(tile.key_first, seen), value.rows(tile.key_first, seen),
             out.rows(row, tile.tokens));
  });
}

}  // namespace kvcodec
