// Attention over codes: compared with a plain reference in double over the codec's decoded rows, for every row of codec_table.hpp.
#include "lib/pipeline/attend.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/codec/codec_subject.hpp"
#include "test/lib/codec/coded_sides.hpp"
#include "test/mismatch.hpp"
#include "test/test.hpp"

namespace attend_test {

using namespace kvcodec;

namespace {

/// Sizes around attend's blocks of 2048 tokens, pieces of 1024 and the codecs' groups.
constexpr size_t kTokens[] = {1, 17, 160, 500, 1025, 2047, 2048, 2049, 4500};

/// Normal values with an offset per channel: scores of a few units, so that rounding errors of scores stay
/// rounding errors of weights.
Matrix<float> random_rows(size_t rows, size_t cols, DType type, Rng& rng) {
  Matrix<float> matrix(rows, cols);
  std::vector<double> offset(cols);
  for (double& o : offset) o = rng.below(4) == 0 ? 2 * rng.normal() : 0;
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < cols; ++j) {
      const double value = offset[j] + rng.normal() * (rng.below(500) == 0 ? 5 : 1);
      matrix(i, j) =
          type == DType::f32 ? static_cast<float>(value) : round_to(type, static_cast<float>(value));
    }
  return matrix;
}

/// A document in a codec's streams, and queries that look at it.
struct Case {
  CodecContext context;
  std::optional<Book> book;
  std::unique_ptr<Codec> codec;
  GroupShape group;
  int q_heads = 0;
  std::optional<test::CodedSides> coded;
  Matrix<float> decoded[2];          // keys, values
  std::vector<double> largest_keys;  // of each channel, the magnitude
  Matrix<float> queries;
  std::vector<uint64_t> visible;

  CausalQueries asked() const { return {q_heads, queries, visible}; }
  AttentionSource source() const {
    return AttentionSource::of_codes(coded->view(Side::key), coded->view(Side::value));
  }
  Matrix<float> attend(const AttentionSource& over) const {
    Matrix<float> out(queries.rows(), queries.cols());
    attend_causally(group, over, asked(), out);
    return out;
  }
};

std::unique_ptr<Case> make_case(const test::CodecCase& row, size_t tokens, size_t queries, Rng& rng) {
  auto made = std::make_unique<Case>();
  constexpr int kHeadDims[] = {3, 8, 33, 64};
  const int heads = 1 + static_cast<int>(rng.below(3));
  int head_dim = 0;
  while (head_dim < std::max(1, row.least_head_dim) || head_dim % row.head_dim_multiple != 0 ||
         (test::kSanitized && row.make_book && head_dim > std::max(8, row.least_head_dim)))
    head_dim = kHeadDims[rng.below(std::size(kHeadDims))];
  made->context = {.num_layers = 4,
                   .heads = heads,
                   .head_dim = head_dim,
                   .storage = rng.below(2) ? DType::bf16 : DType::f16,
                   .rope = test::sample_rope(4, head_dim)};
  if (row.make_book) made->book = row.make_book(made->context, rng);
  if (made->book) made->context.book = &*made->book;
  made->codec = test::codec_of(row, made->context);
  made->group = {made->codec->group_of(0), usual_layer(heads, made->context.head_dim)};
  made->q_heads = heads * (1 + static_cast<int>(rng.below(4)));
  std::array<Matrix<float>, 2> original;
  for (Matrix<float>& rows : original)
    rows = random_rows(tokens, made->group.width(), made->context.storage, rng);
  made->coded.emplace(*made->codec, made->group, original);
  for (const Side side : kSides) made->decoded[static_cast<size_t>(side)] = made->coded->decoded(side);
  made->largest_keys.resize(made->decoded[0].cols());
  for (size_t t = 0; t < tokens; ++t)
    for (size_t j = 0; j < made->largest_keys.size(); ++j)
      made->largest_keys[j] = std::max(made->largest_keys[j], std::abs(double{made->decoded[0](t, j)}));
  made->queries = random_rows(queries,
                              made->group.layers.size() * static_cast<size_t>(made->q_heads) *
                                  static_cast<size_t>(made->group.head_dim()),
                              DType::f32, rng);
  for (size_t i = 0; i < queries; ++i) made->visible.push_back(1 + rng.below(tokens));
  if (queries > 1) made->visible[0] = tokens, made->visible[1] = 1;
  return made;
}

/// Attention of one head, with the possible error of sums in float.
struct Reference {
  std::vector<double> out;
  double slack = 0;
};

Reference reference(const Case& c, size_t query, size_t layer, size_t q_head) {
  const auto d = static_cast<size_t>(c.group.head_dim()), heads = static_cast<size_t>(c.group.heads());
  const size_t sharing = static_cast<size_t>(c.q_heads) / heads;
  const size_t column = (layer * heads + q_head / sharing) * d;
  const size_t query_column = (layer * static_cast<size_t>(c.q_heads) + q_head) * d;
  const size_t visible = c.visible[query];
  std::vector<double> scores(visible);
  double score_error = 0, magnitude = 0, top = -INFINITY, largest_value = 0;
  const float* const asked = c.queries.row(query).data() + query_column;
  for (size_t j = 0; j < d; ++j) magnitude += std::abs(double{asked[j]}) * c.largest_keys[column + j];
  score_error =
      3e-6 * magnitude / std::sqrt(double(d));  // the bound of products in codec_test.cpp, and scaling
  for (size_t t = 0; t < visible; ++t) {
    const float* const key = c.decoded[0].row(t).data() + column;
    double score = 0;
    for (size_t j = 0; j < d; ++j) score += double{asked[j]} * double{key[j]};
    scores[t] = score / std::sqrt(double(d));
    top = std::max(top, scores[t]);
  }
  Reference result{std::vector<double>(d), 0};
  double sum = 0;
  for (size_t t = 0; t < visible; ++t) {
    const double weight = std::exp(scores[t] - top);
    sum += weight;
    const float* const value = c.decoded[1].row(t).data() + column;
    double* const out = result.out.data();
    for (size_t j = 0; j < d; ++j) {
      out[j] += weight * double{value[j]};
      largest_value = std::max(largest_value, std::abs(double{value[j]}));
    }
  }
  for (double& o : result.out) o /= sum;
  // Every weight has a relative error of at most exp(2 e) for errors e of scores, and sums in float add a little.
  result.slack = (std::expm1(2 * score_error) + 2e-5) * largest_value + 1e-30;
  return result;
}

/// A report of the values that differ from those of the reference; empty if none do.
std::string wrong_values(const Case& c, const Matrix<float>& out) {
  test::Mismatch wrong;
  const auto d = static_cast<size_t>(c.group.head_dim());
  for (size_t i = 0; i < out.rows(); ++i)
    for (size_t vector = 0; vector * d < out.cols(); ++vector) {
      const auto q_heads = static_cast<size_t>(c.q_heads);
      const Reference expected = reference(c, i, vector / q_heads, vector % q_heads);
      for (size_t j = 0; j < d; ++j)
        wrong.require(std::abs(out(i, vector * d + j) - expected.out[j]) <= expected.slack, i,
                      vector * d + j);
    }
  return wrong.report();
}

bool same_bits(const Matrix<float>& a, const Matrix<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE(
    "attention over codes: that of the decoded rows, for every codec, straight and decoded first (long)") {
  const auto compare = [](const test::CodecCase& row, Rng& rng) {
    for (int round = 0; round < (test::kSanitized ? 1 : 2); ++round) {
      const size_t tokens = kTokens[rng.below(std::size(kTokens))];
      CAPTURE(tokens);
      const auto made = make_case(row, tokens, 1 + rng.below(7), rng);
      const auto straight = made->attend(made->source());
      const auto decoded = made->attend(
          AttentionSource::of_decoded(made->coded->view(Side::key), made->coded->view(Side::value)));
      CHECK_EQ(wrong_values(*made, straight), "");
      CHECK_EQ(wrong_values(*made, decoded), "");
      const auto rows =
          AttentionSource::of_rows(made->group, [&](Side side, uint64_t first, MatrixView<float> out) {
            for (size_t i = 0; i < out.rows(); ++i)
              std::ranges::copy(made->decoded[static_cast<size_t>(side)].row(first + i), out.row(i).begin());
          });
      CHECK(same_bits(made->attend(rows), decoded));

      set_num_threads(5);
      CHECK(same_bits(made->attend(made->source()), straight));
      set_num_threads(0);
    }
  };
  test::for_each_case(compare, 2);
}

TEST_CASE("attention over codes: every block of a long document counts, and no token that is not seen") {
  for (const char* codec : {"none", "kvcomp"})
    for (const size_t tokens : kTokens) {
      CAPTURE(codec);
      CAPTURE(tokens);
      Rng rng(tokens);
      const auto made = make_case({.label = codec, .codec = codec, .options = {}}, tokens, 5, rng);
      CHECK_EQ(wrong_values(*made, made->attend(made->source())), "");
    }
}

TEST_CASE("attention over codes: a query whose window shows no coded token gives zeros, beside others") {
  Rng rng(2);
  const auto made = make_case({.label = "none", .codec = "none", .options = {}}, 20, 3, rng);
  const Matrix<float> all = made->attend(made->source());
  std::vector<uint64_t> from(made->group.layers.size() * 3);
  from[0] = made->visible[0];  // of the first layer
  CausalQueries queries = made->asked();
  queries.from = from;
  Matrix<float> out(3, all.cols());
  attend_causally(made->group, made->source(), queries, out);
  const size_t of_layer = all.cols() / made->group.layers.size();
  for (size_t i = 0; i < 3; ++i)
    for (size_t c = 0; c < all.cols(); ++c) CHECK_EQ(out(i, c), i == 0 && c < of_layer ? 0 : all(i, c));
}

TEST_CASE("attention over codes: what does not fit is refused") {
  Rng rng(1);
  const auto made = make_case({.label = "none", .codec = "none", .options = {}}, 20, 3, rng);
  const auto source = made->source();
  Matrix<float> out(3, made->queries.cols()), narrow(3, made->queries.cols() - 1), shorter(2, out.cols());
  CausalQueries queries = made->asked();
  CHECK_THROWS_AS(attend_causally(made->group, source, queries, narrow), Error);
  CHECK_THROWS_AS(attend_causally(made->group, source, queries, shorter), Error);
  queries.q_heads = made->q_heads * 2;
  CHECK_THROWS_AS(attend_causally(made->group, source, queries, out), Error);
  queries.q_heads = 0;
  CHECK_THROWS_AS(attend_causally(made->group, source, queries, out), Error);
  queries = made->asked();
  queries.visible = queries.visible.first(2);
  CHECK_THROWS_AS(attend_causally(made->group, source, queries, out), Error);
  auto visible = made->visible;
  visible[1] = 0;
  queries.visible = visible;
  CHECK_THROWS_AS(attend_causally(made->group, source, queries, out), Error);
  visible[1] = 21;  // one more than there are: the codec says so
  CHECK_THROWS_AS(attend_causally(made->group, source, queries, out), Error);

  Matrix<float> nothing(0, out.cols());
  attend_causally(made->group, source, {made->q_heads, nothing, {}}, nothing);
}

TEST_CASE("attention over codes: batches hold 16 MiB of scores, or one query") {
  const GroupShape narrow = usual_group(0, 1, 8, 128), wide = usual_group(0, 80, 8, 128);
  CHECK_EQ(attention_batch(narrow, 32), 64);
  CHECK_EQ(attention_batch(wide, 64), 1);
  CHECK_LT(attention_bytes(narrow, 32, 0), 40 << 20);
  CHECK_GT(attention_bytes(wide, 64, 1000), attention_bytes(wide, 64, 0));
}

}  // namespace attend_test
