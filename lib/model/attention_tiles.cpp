#include "lib/model/attention_tiles.hpp"

#include <algorithm>
#include <bit>
#include <limits>

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

}  // namespace

size_t tile_tokens(const ModelConfig& config) {
  const size_t about = std::max<size_t>(1, kTileRows / static_cast<size_t>(config.group_size()));
  const size_t step = std::min(kTokenStep, std::bit_floor(about));
  return about / step * step;
}

size_t tile_rows(const ModelConfig& config) {
  return tile_tokens(config) * static_cast<size_t>(config.group_size());
}

std::vector<AttentionTile> attention_tiles(const ModelConfig& config,
                                           std::span<const DocumentPlace> documents, size_t first,
                                           size_t rows) {
  std::vector<AttentionTile> tiles;
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
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const AttentionTile& a, const AttentionTile& b) { return a.position > b.position; });
  return tiles;
}

VisibleKeys visible_from(size_t position, int64_t window) {
  const size_t reach = window > 0 ? static_cast<size_t>(window) : std::numeric_limits<size_t>::max();
  return {position + 1 > reach ? position + 1 - reach : 0, position + 1};
}

VisibleKeys visible_within(size_t position, int64_t window, size_t first, size_t count) {
  const VisibleKeys visible = visible_from(position, window);
  return {std::clamp(visible.begin, first, first + count) - first,
          std::clamp(visible.end, first, first + count) - first};
}

void gather_heads(const ModelConfig& config, const AttentionTile& tile, MatrixView<const float> rows,
                  float factor, MatrixView<float> out) {
  const size_t group = static_cast<size_t>(config.group_size()), dim = static_cast<size_t>(config.head_dim);
  for (size_t token = 0; token < tile.tokens; ++token) {
    const auto heads = rows.row(token).subspan(tile.kv_head * group * dim, group * dim);
    const std::span<float> to(out.row(token * group).data(), group * dim);
    scale(heads, factor, to);
  }
}

}  // namespace kvcodec
