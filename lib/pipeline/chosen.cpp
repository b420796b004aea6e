#include "lib/pipeline/chosen.hpp"

#include <algorithm>

#include "lib/core/error.hpp"

namespace kvcodec {

void attend_chosen(const DocumentView& keys, const DocumentView& values, const ChosenQueries& queries,
                   MatrixView<float> out, const AttentionEngine* engine) {
  const GroupShape& group = keys.shape();
  const auto layers = static_cast<size_t>(group.layers), heads = static_cast<size_t>(group.heads);
  const auto q_heads = static_cast<size_t>(queries.q_heads), dims = static_cast<size_t>(group.head_dim);
  const size_t count = queries.rows.rows(), width = layers * q_heads * dims;
  if (q_heads == 0 || q_heads % heads != 0 ||
      (queries.selections != heads && queries.selections != q_heads) ||
      queries.tokens.size() != count * layers * queries.selections || queries.rows.cols() != width ||
      out.rows() != count || out.cols() != width)
    throw failed("{} x {} queries of {} query heads with {} lists of tokens, {} x {} results; rows have {}",
                 count, queries.rows.cols(), q_heads, queries.tokens.size(), out.rows(), out.cols(), width);
  // Everything that any of them looks at, once.
  std::vector<uint32_t> all;
  for (const auto& tokens : queries.tokens) all.insert(all.end(), tokens.begin(), tokens.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  Matrix<float> decoded[2];
  for (const Side side : kSides) {
    Matrix<float>& rows = decoded[side == Side::value];
    rows = Matrix<float>(all.size(), group.width());
    (side == Side::key ? keys : values).decode_tokens(all, rows);
  }
  std::vector<CacheRows> sources;
  for (size_t head = 0; head < layers * heads; ++head)
    sources.emplace_back(decoded[0].view().columns(head * dims, dims),
                         decoded[1].view().columns(head * dims, dims));
  std::vector<std::vector<uint32_t>> places(queries.tokens.size());
  for (size_t i = 0; i < places.size(); ++i)
    for (const uint32_t token : queries.tokens[i])
      places[i].push_back(
          static_cast<uint32_t>(std::lower_bound(all.begin(), all.end(), token) - all.begin()));
  // Query heads that share a selection are asked together.
  const size_t sharing = q_heads / queries.selections;
  std::vector<Attention> parts;
  for (size_t query = 0; query < count; ++query)
    for (size_t i = 0; i < layers * queries.selections; ++i) {
      const size_t column = i * sharing * dims;
      const size_t head =
          i / queries.selections * heads + i % queries.selections * heads / queries.selections;
      const auto& chosen = places[query * layers * queries.selections + i];
      parts.push_back({.queries = {queries.rows.row(query).data() + column, sharing, dims},
                       .parts = {{.rows = &sources[head], .tokens = std::span<const uint32_t>(chosen)}},
                       .out = {out.row(query).data() + column, sharing, dims}});
    }
  if (!engine || !engine->attend(parts)) attend(parts);
}

}  // namespace kvcodec
