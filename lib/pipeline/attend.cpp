#include "lib/pipeline/attend.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "lib/core/aligned.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {

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

/// Keys and values of each of so many heads.
static std::vector<CacheRows> heads_of(const Matrix<float>& keys, const Matrix<float>& values, size_t count) {
  const size_t dims = keys.cols() / count, value_dims = values.cols() / count;
  std::vector<CacheRows> heads;
  heads.reserve(count);
  for (size_t head = 0; head < count; ++head)
    heads.emplace_back(keys.view().columns(head * dims, dims),
                       values.view().columns(head * value_dims, value_dims));
  return heads;
}

/// Throws Error(failed) for shapes that do not fit and queries that see nothing.
static void check_queries(const GroupShape& group, const CausalQueries& queries, MatrixView<float> out) {
  if (queries.q_heads < 1 || group.heads() < 1 || queries.q_heads % group.heads() != 0)
    throw failed("{} query heads for {} heads of keys", queries.q_heads, group.heads());
  const size_t layers = group.layers.size(), heads = layers * as_size(queries.q_heads);
  const size_t width = heads * group.dims(), count = queries.rows.rows();
  const auto is = [](size_t size, size_t wanted) { return size == 0 || size == wanted; };
  if (queries.rows.cols() != width || out.cols() == 0 || out.cols() % heads != 0 || out.rows() != count ||
      queries.visible.size() != count || !is(queries.from.size(), layers * count) ||
      !is(queries.form.sinks.size(), heads))
    throw failed(
        "{} x {} queries with {} numbers of visible tokens, {} x {} results, {} first tokens, {} scores of sinks; rows have {} values",
        count, queries.rows.cols(), queries.visible.size(), out.rows(), out.cols(), queries.from.size(),
        queries.form.sinks.size(), width);
  for (size_t i = 0; i < count; ++i)
    for (size_t layer = 0; layer < layers; ++layer)
      if (queries.visible[i] == 0 || queries.from_of(layer, i) > queries.visible[i])
        throw failed("a query that sees no token");
}

AttentionSource AttentionSource::of_rows(const GroupShape& keys, Read read, int value_dim) {
  const size_t values = keys.all_heads() * (value_dim > 0 ? as_size(value_dim) : keys.dims());
  return {[widths = std::array{keys.width(), values}, read = std::move(read)](
              Side side, uint64_t first, MatrixView<const float> factors, MatrixView<float> out) {
    const auto of_side = [&](uint64_t at, MatrixView<float> rows) { read(side, at, rows); };
    read_and_multiply(side, widths[side == Side::value], of_side, first, factors, out);
  }};
}

AttentionSource AttentionSource::of_decoded(const DocumentView& keys, const DocumentView& values) {
  return of_rows(
      keys.shape(),
      [&](Side side, uint64_t first, MatrixView<float> rows) {
        (side == Side::key ? keys : values).decode(first, rows);
      },
      values.shape().head_dim());
}

void attend_causally(const GroupShape& group, const AttentionSource& source, const CausalQueries& queries,
                     MatrixView<float> out) {
  check_queries(group, queries, out);
  const size_t count = queries.rows.rows(), dims = group.dims(), heads = group.all_heads(),
               sharing = static_cast<size_t>(queries.q_heads / group.heads()), rows = heads * count * sharing,
               value_dims = out.cols() / (heads * sharing);
  if (count == 0) return;
  const uint64_t end = std::ranges::max(queries.visible);
  // Rows are in the order that codecs take: by key/value head, then by query, then by query head among those that share the first.
  const auto query_of = [&](size_t row) { return row / sharing % count; };
  const auto q_head_of = [&](size_t row) { return row / (count * sharing) * sharing + row % sharing; };
  Matrix<float> vectors(rows, dims), sums(rows, value_dims), added(rows, value_dims),
      all_scores(rows, std::min(kTokens, round_up(end, kSoftmaxUnit)));
  std::vector<SoftmaxState> states(rows);
  const float factor = 1 / std::sqrt(static_cast<float>(dims));
  for (size_t row = 0; row < rows; ++row) {
    for (size_t c = 0; c < dims; ++c)
      vectors(row, c) = queries.rows(query_of(row), q_head_of(row) * dims + c) * factor;
    if (!queries.form.sinks.empty()) states[row] = {queries.form.sinks[q_head_of(row)], 1};
  }
  for (uint64_t first = 0; first < end; first += kTokens) {
    const auto tokens = static_cast<size_t>(std::min<uint64_t>(kTokens, end - first));
    const auto scores = all_scores.view().columns(0, tokens);
    source.multiply(Side::key, first, vectors, scores);
    // Turns scores into weights, and rescales the sums of earlier tokens to match them.
    parallel_each(rows, kSoftmaxRows, [&](size_t row) {
      const auto own = std::span(all_scores.row(row)).first(round_up(tokens, kSoftmaxUnit));
      const auto within = [&](uint64_t token) {
        return static_cast<size_t>(std::clamp(token, first, first + tokens) - first);
      };
      const size_t layer = q_head_of(row) / as_size(queries.q_heads), query = query_of(row),
                   begin = within(queries.from_of(layer, query)), seen = within(queries.visible[query]);
      if (begin >= seen) return std::ranges::fill(own, 0.0f), void();
      if (queries.form.cap > 0) soft_cap(own.subspan(begin, seen - begin), queries.form.cap);
      std::ranges::fill(own.first(begin), -std::numeric_limits<float>::infinity());
      std::ranges::fill(own.subspan(seen), -std::numeric_limits<float>::infinity());
      const float rescaled = softmax_block(own, states[row]);
      if (rescaled != 1) scale(sums.row(row), rescaled);
    });
    source.multiply(Side::value, first, scores, added);
    add_to({sums.data(), sums.size()}, {added.data(), added.size()});
  }
  for (size_t row = 0; row < rows; ++row)
    for (size_t c = 0; c < value_dims; ++c)
      out(query_of(row), q_head_of(row) * value_dims + c) =
          states[row].sum == 0 ? 0.0f : sums(row, c) / states[row].sum;
}

bool attend_decoded(const AttendFunction& on_device, const DocumentView& keys, const DocumentView& values,
                    const CausalQueries& queries, MatrixView<float> out) {
  const GroupShape& group = keys.shape();
  check_queries(group, queries, out);
  const size_t count = queries.rows.rows(), dims = group.dims(), value_dims = values.shape().dims(),
               sharing = static_cast<size_t>(queries.q_heads / group.heads());
  if (count == 0) return true;
  const auto tokens = static_cast<size_t>(std::ranges::max(queries.visible));
  Matrix<float> decoded[] = {{tokens, group.width()}, {tokens, values.shape().width()}};
  decode_sides(keys, values, 0, decoded[0], decoded[1]);
  const std::vector<CacheRows> heads = heads_of(decoded[0], decoded[1], group.all_heads());
  std::vector<CacheRows> seen;
  std::vector<Attention> tasks;
  seen.reserve(count * heads.size());
  tasks.reserve(count * heads.size());
  for (size_t query = 0; query < count; ++query)
    for (size_t head = 0; head < heads.size(); ++head) {
      const uint64_t from = queries.from_of(head / as_size(group.heads()), query);
      const size_t own = queries.visible[query] - from, q_head = head * sharing;
      if (from > 0) seen.emplace_back(heads[head].keys.rows(from, own), heads[head].values.rows(from, own));
      tasks.push_back({.queries = {queries.rows.row(query).data() + q_head * dims, sharing, dims},
                       .rows = from > 0 ? &seen.back() : &heads[head],
                       .out = {out.row(query).data() + q_head * value_dims, sharing, value_dims},
                       .visible = own,
                       .form = queries.form.of_heads(q_head, sharing)});
    }
  return on_device(tasks);
}

void attend_chosen(const DocumentView& keys, const DocumentView& values, const ChosenQueries& queries,
                   MatrixView<float> out, const AttendFunction& on_device) {
  const GroupShape& group = keys.shape();
  const auto layers = group.layers.size(), heads = as_size(group.heads());
  const auto q_heads = as_size(queries.q_heads), dims = group.dims(), value_dims = values.shape().dims();
  const size_t count = queries.rows.rows(), width = layers * q_heads * dims;
  if (q_heads == 0 || q_heads % heads != 0 ||
      (queries.selections != heads && queries.selections != q_heads) ||
      queries.tokens.size() != count * layers * queries.selections || queries.rows.cols() != width ||
      out.rows() != count || out.cols() != layers * q_heads * value_dims ||
      (!queries.form.sinks.empty() && queries.form.sinks.size() != layers * q_heads))
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
    const DocumentView& view = side == Side::key ? keys : values;
    rows = Matrix<float>(all.size(), view.shape().width());
    view.decode_tokens(all, rows);
  }
  const std::vector<CacheRows> sources = heads_of(decoded[0], decoded[1], group.all_heads());
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
      const size_t head =
          i / queries.selections * heads + i % queries.selections * heads / queries.selections;
      const auto& chosen = places[query * layers * queries.selections + i];
      tasks.push_back({.queries = {queries.rows.row(query).data() + i * sharing * dims, sharing, dims},
                       .rows = &sources[head],
                       .out = {out.row(query).data() + i * sharing * value_dims, sharing, value_dims},
                       .tokens = std::span<const uint32_t>(chosen),
                       .form = queries.form.of_heads(i * sharing, sharing)});
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
