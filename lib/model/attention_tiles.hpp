// How attention is cut in tiles, in the forward and in the backward pass. Inside lib/model only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/model/config.hpp"
#include "lib/model/prefill_engine.hpp"

namespace kvcodec {

/// Query tokens of one document that are computed together, for one key/value head. The query heads of that head are
/// stacked: a tile has tokens * group_size rows, row t * group_size + h being query head h of the group at token t.
struct AttentionTile {
  size_t row;        // of the batch
  size_t key_first;  // row of the document's position 0 among keys
  size_t position, tokens;
  size_t kv_head;
};

/// Tokens of a tile, at most.
size_t tile_tokens(const ModelConfig& config);
/// Rows of a tile, at most.
size_t tile_rows(const ModelConfig& config);

/// Those of rows [first, first + rows) of the batch, the ones with the most keys first: the short ones fill the gaps
/// at the end.
std::vector<AttentionTile> attention_tiles(const ModelConfig& config,
                                           std::span<const DocumentPlace> documents, size_t first,
                                           size_t rows);

/// Keys [begin, end) of the document that the token at `position` sees; window: 0 = all before it.
struct VisibleKeys {
  size_t begin, end;
};
VisibleKeys visible_from(size_t position, int64_t window);

/// The same as places within keys [first, first + count): begin = end where it sees none of them.
VisibleKeys visible_within(size_t position, int64_t window, size_t first, size_t count);

/// Writes the tile's rows of what each token has for all query heads, times a factor: rows: (tile.tokens,
/// num_q_heads * head_dim); out: (tile.tokens * group_size, head_dim), without gaps.
void gather_heads(const ModelConfig& config, const AttentionTile& tile, MatrixView<const float> rows,
                  float factor, MatrixView<float> out);

}  // namespace kvcodec
