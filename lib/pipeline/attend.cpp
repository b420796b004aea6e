#include "lib/pipeline/attend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lib/codec/products.hpp"
#include "lib/core/aligned.hpp"
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

/// Tokens that RowsSource reads at a time, as many as decode_and_multiply_keys decodes: so both multiply the
/// same matrices, and a lossless codec's result is that of the rows themselves.
constexpr size_t kRows = 1024;

/// Rows of scores that one thread takes at a time.
constexpr size_t kSoftmaxRows = 8;

/// A batch of queries at work. Its vectors stand as codecs take them: head by head, in each the queries one
/// after the other, of each the query heads that share the head.
class Batch {
 public:
  Batch(const GroupShape& group, const CausalQueries& queries)
      : queries_(queries),
        heads_(static_cast<size_t>(group.layers) * static_cast<size_t>(group.heads)),
        dims_(static_cast<size_t>(group.head_dim)),
        sharing_(static_cast<size_t>(queries.q_heads / group.heads)),
        vectors_(rows(), dims_),
        sums_(rows(), dims_),
        added_(rows(), dims_),
        scores_(rows(), std::min(kTokens, round_up(last_visible(), kSoftmaxUnit))),
        states_(rows()) {
    const float scale = 1 / std::sqrt(static_cast<float>(dims_));
    for (size_t row = 0; row < rows(); ++row) {
      const auto query = queries.rows.row(query_of(row)).subspan(column_of(row), dims_);
      for (size_t c = 0; c < dims_; ++c) vectors_(row, c) = query[c] * scale;
    }
  }

  void run(const AttentionSource& source) {
    const uint64_t end = last_visible();
    for (uint64_t first = 0; first < end; first += kTokens) {
      const auto count = static_cast<size_t>(std::min<uint64_t>(kTokens, end - first));
      const auto scores = scores_.view().columns(0, count);
      source.multiply_keys(first, vectors_, scores);
      softmax(first, count);
      source.multiply_values(first, scores, added_);
      add_to({sums_.data(), sums_.size()}, {added_.data(), added_.size()});
    }
  }

  void store(MatrixView<float> out) const {
    for (size_t row = 0; row < rows(); ++row) {
      const auto result = out.row(query_of(row)).subspan(column_of(row), dims_);
      for (size_t c = 0; c < dims_; ++c) result[c] = sums_(row, c) / states_[row].sum;
    }
  }

 private:
  size_t count() const { return queries_.rows.rows(); }
  size_t rows() const { return heads_ * count() * sharing_; }
  size_t query_of(size_t row) const { return row / sharing_ % count(); }
  /// Where the row's vector begins in a row of queries.
  size_t column_of(size_t row) const {
    return (row / (count() * sharing_) * sharing_ + row % sharing_) * dims_;
  }
  uint64_t last_visible() const {
    return queries_.visible.empty() ? 0 : *std::ranges::max_element(queries_.visible);
  }

  /// Turns the scores of tokens [first, first + count) into weights, and brings what was summed before to
  /// their scale.
  void softmax(uint64_t first, size_t count) {
    parallel_for(rows(), kSoftmaxRows, [&](size_t begin, size_t end, int) {
      for (size_t row = begin; row < end; ++row) {
        const uint64_t visible = queries_.visible[query_of(row)];
        const auto scores = std::span(scores_.row(row)).first(round_up(count, kSoftmaxUnit));
        const auto seen =
            static_cast<size_t>(visible > first ? std::min<uint64_t>(visible - first, count) : 0);
        if (seen == 0) {
          std::ranges::fill(scores, 0.0f);
          continue;
        }
        std::ranges::fill(scores.subspan(seen), -std::numeric_limits<float>::infinity());
        const float factor = softmax_block(scores, states_[row]);
        if (factor != 1) scale(sums_.row(row), factor);
      }
    });
  }

  const CausalQueries& queries_;
  size_t heads_, dims_, sharing_;
  Matrix<float> vectors_, sums_, added_, scores_;
  std::vector<SoftmaxState> states_;
};

}  // namespace

void CodesSource::multiply_keys(uint64_t first, MatrixView<const float> queries,
                                MatrixView<float> out) const {
  if (products_ == Products::straight)
    keys_.multiply_keys(first, queries, out);
  else
    decode_and_multiply_keys(keys_, first, queries, out);
}

void CodesSource::multiply_values(uint64_t first, MatrixView<const float> weights,
                                  MatrixView<float> out) const {
  if (products_ == Products::straight)
    values_.multiply_values(first, weights, out);
  else
    decode_and_multiply_values(values_, first, weights, out);
}

RowsSource::RowsSource(const GroupShape& group, Read read) : width_(group.width()), read_(std::move(read)) {}

void RowsSource::multiply_keys(uint64_t first, MatrixView<const float> queries, MatrixView<float> out) const {
  Matrix<float> rows(std::min(out.cols(), kRows), width_);
  for (size_t done = 0; done < out.cols(); done += kRows) {
    const auto part = rows.view().rows(0, std::min(kRows, out.cols() - done));
    read_(Side::key, first + done, part);
    multiply_key_rows(part, queries, out.columns(done, part.rows()));
  }
}

void RowsSource::multiply_values(uint64_t first, MatrixView<const float> weights,
                                 MatrixView<float> out) const {
  for (size_t i = 0; i < out.rows(); ++i) std::ranges::fill(out.row(i), 0.0f);
  Matrix<float> rows(std::min(weights.cols(), kRows), width_);
  for (size_t done = 0; done < weights.cols(); done += kRows) {
    const auto part = rows.view().rows(0, std::min(kRows, weights.cols() - done));
    read_(Side::value, first + done, part);
    multiply_value_rows(part, weights.columns(done, part.rows()), out);
  }
}

namespace {

/// Throws Error(failed) for shapes that do not fit and queries that see nothing.
void check_asked(const GroupShape& group, const CausalQueries& queries, MatrixView<float> out) {
  if (queries.q_heads < 1 || group.heads < 1 || queries.q_heads % group.heads != 0)
    throw failed("{} query heads for {} heads of keys", queries.q_heads, group.heads);
  const size_t width = static_cast<size_t>(group.layers) * static_cast<size_t>(queries.q_heads) *
                       static_cast<size_t>(group.head_dim);
  const size_t count = queries.rows.rows();
  if (queries.rows.cols() != width || out.cols() != width || out.rows() != count ||
      queries.visible.size() != count)
    throw failed("{} x {} queries that see {} stretches of tokens, with {} x {} results; rows have {} values",
                 count, queries.rows.cols(), queries.visible.size(), out.rows(), out.cols(), width);
  if (count > 0 && std::ranges::min(queries.visible) == 0) throw failed("a query that sees no token");
}

}  // namespace

void attend_causally(const GroupShape& group, const AttentionSource& source, const CausalQueries& queries,
                     MatrixView<float> out) {
  check_asked(group, queries, out);
  if (queries.rows.rows() == 0) return;
  Batch batch(group, queries);
  batch.run(source);
  batch.store(out);
}

bool attend_decoded(const AttentionEngine& engine, const DocumentView& keys, const DocumentView& values,
                    const CausalQueries& queries, MatrixView<float> out) {
  const GroupShape& group = keys.shape();
  check_asked(group, queries, out);
  const size_t count = queries.rows.rows(), d = static_cast<size_t>(group.head_dim),
               heads = static_cast<size_t>(group.layers) * static_cast<size_t>(group.heads),
               sharing = static_cast<size_t>(queries.q_heads / group.heads);
  if (count == 0) return true;
  const auto tokens = static_cast<size_t>(std::ranges::max(queries.visible));
  Matrix<float> decoded[] = {{tokens, group.width()}, {tokens, group.width()}};
  decode_sides(keys, values, 0, decoded[0], decoded[1]);
  std::vector<CacheRows> rows;  // [head]
  for (size_t head = 0; head < heads; ++head)
    rows.emplace_back(decoded[0].view().columns(head * d, d), decoded[1].view().columns(head * d, d));
  std::vector<Attention> asked;
  for (size_t query = 0; query < count; ++query)
    for (size_t head = 0; head < heads; ++head) {
      const size_t column = head * sharing * d;
      asked.push_back({.queries = {queries.rows.row(query).data() + column, sharing, d},
                       .parts = {{.rows = &rows[head], .visible = queries.visible[query]}},
                       .out = {out.row(query).data() + column, sharing, d}});
    }
  return engine.attend(asked);
}

size_t attention_batch(const GroupShape& group, int q_heads) {
  const size_t vectors = static_cast<size_t>(group.layers) * static_cast<size_t>(q_heads);
  return std::max<size_t>(1, kScores / kTokens / vectors);
}

uint64_t attention_bytes(const GroupShape& group, int q_heads, size_t codec_scratch) {
  const uint64_t vectors = uint64_t{attention_batch(group, q_heads)} * static_cast<uint64_t>(group.layers) *
                           static_cast<uint64_t>(q_heads);
  // Of each vector: itself, its sum, what is added, partial sums of a codec (one for 512 tokens, say), and
  // the caller's query and result.
  constexpr uint64_t kCopies = 5 + kTokens / 512;
  return vectors * (kTokens + kCopies * static_cast<uint64_t>(group.head_dim)) * sizeof(float) +
         uint64_t{kTokens} * codec_scratch + uint64_t{kRows} * group.width() * sizeof(float);
}

}  // namespace kvcodec
