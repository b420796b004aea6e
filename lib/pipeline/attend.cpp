#include "lib/pipeline/attend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lib/core/aligned.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

/// Tokens of one step of the softmax: a multiple of what softmax_block takes, and of every usual block of a
/// codec; 32 blocks of 64 tokens for each head keep the threads of a large machine busy.
constexpr size_t kTokens = 2048;
constexpr size_t kSoftmaxUnit = 16;
static_assert(kTokens % kSoftmaxUnit == 0);

/// Scores held at a time, over all heads and queries: 16 MiB.
constexpr size_t kScores = size_t{1} << 22;

/// Tokens that are read at a time where they are not multiplied as codes (lib/codec/document_view.cpp).
constexpr size_t kRows = 1024;

/// Rows of scores that one thread takes at a time.
constexpr size_t kSoftmaxRows = 8;

/// Keys and values of each head.
std::vector<CacheRows> heads_of(const Matrix<float>& keys, const Matrix<float>& values, size_t dims) {
  std::vector<CacheRows> heads;
  for (size_t column = 0; column < keys.cols(); column += dims)
    heads.emplace_back(keys.view().columns(column, dims), values.view().columns(column, dims));
  return heads;
}

/// Throws Error(failed) for shapes that do not fit and queries that see nothing.
void check_queries(const GroupShape& group, const CausalQueries& queries, MatrixView<float> out) {
  if (queries.q_heads < 1 || group.heads() < 1 || queries.q_heads % group.heads() != 0)
    throw failed("{} query heads for {} heads of keys", queries.q_heads, group.heads());
  const size_t width = group.layers.size() * as_size(queries.q_heads) * group.dims();
  const size_t count = queries.rows.rows();
  if (queries.rows.cols() != width || out.cols() != width || out.rows() != count ||
      queries.visible.size() != count)
    throw failed("{} x {} queries with {} numbers of visible tokens, {} x {} results; rows have {} values",
                 count, queries.rows.cols(), queries.visible.size(), out.rows(), out.cols(), width);
  if (count > 0 && std::ranges::min(queries.visible) == 0) throw failed("a query that sees no token");
}

}  // namespace

AttentionSource AttentionSource::of_codes(const DocumentView& keys, const DocumentView& values) {
  return {[&](Side side, uint64_t first, MatrixView<const float> factors, MatrixView<float> out) {
    (side == Side::key ? keys : values).multiply(first, factors, out);
  }};
}

AttentionSource AttentionSource::of_rows(const GroupShape& group, Read read) {
  return {[width = group.width(), read = std::move(read)](
              Side side, uint64_t first, MatrixView<const float> factors, MatrixView<float> out) {
    const auto of_side = [&](uint64_t at, MatrixView<float> rows) { read(side, at, rows); };
    read_and_multiply(side, width, of_side, first, factors, out);
  }};
}

AttentionSource AttentionSource::of_decoded(const DocumentView& keys, const DocumentView& values) {
  return of_rows(keys.shape(), [&](Side side, uint64_t first, MatrixView<float> rows) {
    (side == Side::key ? keys : values).decode(first, rows);
  });
}

void attend_causally(const GroupShape& group, const AttentionSource& source, const CausalQueries& queries,
                     MatrixView<float> out) {
  check_queries(group, queries, out);
  const size_t count = queries.rows.rows(), dims = group.dims(), heads = group.all_heads(),
               sharing = static_cast<size_t>(queries.q_heads / group.heads()), rows = heads * count * sharing;
  if (count == 0) return;
  const uint64_t end = std::ranges::max(queries.visible);
  // Rows are in the order that codecs take: by key/value head, then by query, then by query head among those that share the first.
  const auto query_of = [&](size_t row) { return row / sharing % count; };
  const auto column_of = [&](size_t row) {
    return (row / (count * sharing) * sharing + row % sharing) * dims;
  };
  Matrix<float> vectors(rows, dims), sums(rows, dims), added(rows, dims),
      all_scores(rows, std::min(kTokens, round_up(end, kSoftmaxUnit)));
  std::vector<SoftmaxState> states(rows);
  const float factor = 1 / std::sqrt(static_cast<float>(dims));
  for (size_t row = 0; row < rows; ++row)
    for (size_t c = 0; c < dims; ++c)
      vectors(row, c) = queries.rows(query_of(row), column_of(row) + c) * factor;
  for (uint64_t first = 0; first < end; first += kTokens) {
    const auto tokens = static_cast<size_t>(std::min<uint64_t>(kTokens, end - first));
    const auto scores = all_scores.view().columns(0, tokens);
    source.multiply(Side::key, first, vectors, scores);
    // Turns scores into weights, and rescales the sums of earlier tokens to match them.
    parallel_each(rows, kSoftmaxRows, [&](size_t row) {
      const uint64_t visible = queries.visible[query_of(row)];
      const auto own = std::span(all_scores.row(row)).first(round_up(tokens, kSoftmaxUnit));
      const auto seen =
          static_cast<size_t>(visible > first ? std::min<uint64_t>(visible - first, tokens) : 0);
      std::ranges::fill(own.subspan(seen), seen == 0 ? 0.0f : -std::numeric_limits<float>::infinity());
      const float rescaled = seen == 0 ? 1 : softmax_block(own, states[row]);
      if (rescaled != 1) scale(sums.row(row), rescaled);
    });
    source.multiply(Side::value, first, scores, added);
    add_to({sums.data(), sums.size()}, {added.data(), added.size()});
  }
  for (size_t row = 0; row < rows; ++row)
    for (size_t c = 0; c < dims; ++c) out(query_of(row), column_of(row) + c) = sums(row, c) / states[row].sum;
}

bool attend_decoded(const AttendFunction& on_device, const DocumentView& keys, const DocumentView& values,
                    const CausalQueries& queries, MatrixView<float> out) {
  const GroupShape& group = keys.shape();
  check_queries(group, queries, out);
  const size_t count = queries.rows.rows(), dims = group.dims(),
               sharing = static_cast<size_t>(queries.q_heads / group.heads());
  if (count == 0) return true;
  const auto tokens = static_cast<size_t>(std::ranges::max(queries.visible));
  Matrix<float> decoded[] = {{tokens, group.width()}, {tokens, group.width()}};
  decode_sides(keys, values, 0, decoded[0], decoded[1]);
  const std::vector<CacheRows> heads = heads_of(decoded[0], decoded[1], dims);
  std::vector<Attention> tasks;
  for (size_t query = 0; query < count; ++query)
    for (size_t head = 0; head < heads.size(); ++head) {
      const size_t column = head * sharing * dims;
      tasks.push_back({.queries = {queries.rows.row(query).data() + column, sharing, dims},
                       .rows = &heads[head],
                       .out = {out.row(query).data() + column, sharing, dims},
                       .visible = queries.visible[query]});
    }
  return on_device(tasks);
}

void attend_chosen(const DocumentView& keys, const DocumentView& values, const ChosenQueries& queries,
                   MatrixView<float> out, const AttendFunction& on_device) {
  const GroupShape& group = keys.shape();
  const auto layers = group.layers.size(), heads = as_size(group.heads());
  const auto q_heads = as_size(queries.q_heads), dims = group.dims();
  const size_t count = queries.rows.rows(), width = layers * q_heads * dims;
  if (q_heads == 0 || q_heads % heads != 0 ||
      (queries.selections != heads && queries.selections != q_heads) ||
      queries.tokens.size() != count * layers * queries.selections || queries.rows.cols() != width ||
      out.rows() != count || out.cols() != width)
    throw failed(
        "{} x {} queries of {} query heads, {} lists of tokens, {} x {} results; rows have {} values", count,
        queries.rows.cols(), q_heads, queries.tokens.size(), out.rows(), out.cols(), width);
  // All tokens that any query attends to, each once.
  std::vector<uint32_t> all;
  for (const auto& tokens : queries.tokens) all.insert(all.end(), tokens.begin(), tokens.end());
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  Matrix<float> decoded[2];
  for (const Side side : kSides) {
    Matrix<float>& rows = decoded[side == Side::value];
    rows = Matrix<float>(all.size(), group.width());
    (side == Side::key ? keys : values).decode_tokens(all, rows);
  }
  const std::vector<CacheRows> sources = heads_of(decoded[0], decoded[1], dims);
  std::vector<std::vector<uint32_t>> places(queries.tokens.size());
  for (size_t i = 0; i < places.size(); ++i)
    for (const uint32_t token : queries.tokens[i])
      places[i].push_back(
          static_cast<uint32_t>(std::lower_bound(all.begin(), all.end(), token) - all.begin()));
  // Query heads that share a selection make one task.
  const size_t sharing = q_heads / queries.selections;
  std::vector<Attention> tasks;
  for (size_t query = 0; query < count; ++query)
    for (size_t i = 0; i < layers * queries.selections; ++i) {
      const size_t column = i * sharing * dims;
      const size_t head =
          i / queries.selections * heads + i % queries.selections * heads / queries.selections;
      const auto& chosen = places[query * layers * queries.selections + i];
      tasks.push_back({.queries = {queries.rows.row(query).data() + column, sharing, dims},
                       .rows = &sources[head],
                       .out = {out.row(query).data() + column, sharing, dims},
                       .tokens = std::span<const uint32_t>(chosen)});
    }
  if (!on_device || !on_device(tasks)) attend(tasks);
}

size_t attention_batch(const GroupShape& group, int q_heads) {
  const size_t vectors = group.layers.size() * as_size(q_heads);
  return std::max<size_t>(1, kScores / kTokens / vectors);
}

uint64_t attention_bytes(const GroupShape& group, int q_heads, size_t codec_scratch) {
  const uint64_t vectors =
      uint64_t{attention_batch(group, q_heads)} * group.layers.size() * static_cast<uint64_t>(q_heads);
  // Vectors for each query head: itself, its sum, what is added to that, partial sums of a codec (one for 512 tokens,
  // say), and the caller's query and result.
  constexpr uint64_t kCopies = 5 + kTokens / 512;
  return vectors * (kTokens + kCopies * uint64_t{group.dims()}) * sizeof(float) +
         uint64_t{kTokens} * codec_scratch + uint64_t{kRows} * group.width() * sizeof(float);
}

}  // namespace kvcodec
