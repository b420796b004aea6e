#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/pipeline/attend.hpp"
#include "test/lib/codec/codec_table.hpp"
#include "test/lib/codec/coded_sides.hpp"
#include "test/test.hpp"

namespace chosen_test {

using namespace kvcodec;

namespace {

constexpr size_t kTokens = 150;
constexpr size_t kDims = 32, kHeads = 2, kQHeads = 4, kQueries = 5;

std::vector<uint32_t> some_tokens(size_t count, Rng& rng) {
  std::vector<uint32_t> tokens;
  for (uint32_t t = 0; t < kTokens; ++t)
    if (rng.below(kTokens) < count) tokens.push_back(t);
  return tokens;
}

Matrix<float> random_rows(size_t rows, size_t cols, Rng& rng) {
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i)
    matrix.data()[i] = round_to(DType::bf16, static_cast<float>(rng.normal()));
  return matrix;
}

/// softmax(q k) v over the listed rows of one head, in double.
std::vector<double> reference(std::span<const float> query, MatrixView<const float> keys,
                              MatrixView<const float> values, const std::vector<uint32_t>& tokens) {
  std::vector<double> out(kDims), weights;
  double largest = -1e300, sum = 0;
  for (const uint32_t token : tokens) {
    double logit = 0;
    for (size_t j = 0; j < kDims; ++j) logit += double{query[j]} * keys(token, j) / std::sqrt(double(kDims));
    weights.push_back(logit);
    largest = std::max(largest, logit);
  }
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  for (size_t i = 0; i < tokens.size(); ++i)
    for (size_t j = 0; j < kDims; ++j) out[j] += weights[i] / sum * values(tokens[i], j);
  return out;
}

}  // namespace

TEST_CASE("chosen tokens: decoded alone they are what they are among all, and attention is over them only") {
  for (const test::CodecCase& row : test::codec_table()) {
    CAPTURE(row.label);
    Rng rng(81);
    CodecContext context{.num_layers = 4,
                         .heads = kHeads,
                         .head_dim = kDims,
                         .query_heads = kQHeads,
                         .rope = test::sample_rope(4, kDims)};
    std::optional<Book> book;
    if (row.make_book) context.book = &book.emplace(row.make_book(context, rng));
    const auto codec = test::codec_of(row, context);
    const GroupShape shape{codec->group_of(0), usual_layer(kHeads, kDims)};
    const test::CodedSides coded(
        *codec, shape, {random_rows(kTokens, shape.width(), rng), random_rows(kTokens, shape.width(), rng)});
    const Matrix<float> all[2] = {coded.decoded(Side::key), coded.decoded(Side::value)};
    for (const Side side : kSides)
      for (const size_t count : {size_t{0}, size_t{1}, size_t{20}, kTokens}) {
        const auto tokens = some_tokens(count, rng);
        Matrix<float> out(tokens.size(), shape.width());
        coded.view(side).decode_tokens(tokens, out);
        for (size_t t = 0; t < tokens.size(); ++t)
          CHECK(std::ranges::equal(std::as_const(out).row(t), all[static_cast<size_t>(side)].row(tokens[t])));
      }
    const size_t layers = codec->group_of(0).size();
    for (const size_t selections : {kHeads, kQHeads}) {
      const Matrix<float> queries = random_rows(kQueries, layers * kQHeads * kDims, rng);
      std::vector<std::vector<uint32_t>> tokens(kQueries * layers * selections);
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = some_tokens(i % 7 * 5, rng);
      Matrix<float> out(kQueries, queries.cols());
      attend_chosen(coded.view(Side::key), coded.view(Side::value),
                    {static_cast<int>(kQHeads), queries, selections, tokens}, out);
      for (size_t q = 0; q < kQueries; ++q)
        for (size_t h = 0; h < layers * kQHeads; ++h) {
          const size_t head = h / kQHeads * kHeads + h % kQHeads / (kQHeads / kHeads);
          const auto& own = tokens[q * layers * selections + h / (kQHeads / selections)];
          const auto expected = reference(std::as_const(queries).row(q).subspan(h * kDims, kDims),
                                          all[0].view().columns(head * kDims, kDims),
                                          all[1].view().columns(head * kDims, kDims), own);
          for (size_t j = 0; j < kDims; ++j)
            CHECK_EQ(out(q, h * kDims + j), doctest::Approx(expected[j]).epsilon(1e-4).scale(1));
        }
    }
  }
}

TEST_CASE("chosen tokens: what does not fit is refused") {
  const CodecContext context{.num_layers = 1, .heads = 1, .head_dim = 8, .query_heads = 1};
  const CodecEntry& entry = find_codec("none");
  const auto codec = entry.make(*entry.make_options(), context);
  const GroupShape shape = usual_group(0, 1, 1, 8, Side::key);
  const Matrix<float> rows(10, 8);
  const DocumentRows document(rows);
  const Encoded encoded = encode_in_memory(*codec, shape, {&document, 1});
  Matrix<float> out(3, 8);
  const auto view = codec->open(shape, encoded.document(0));
  const auto decode = [&](std::vector<uint32_t> tokens) { view->decode_tokens(tokens, out); };
  decode({2, 5, 9});
  CHECK_THROWS_AS(decode({2, 5}), Error);
  CHECK_THROWS_AS(decode({5, 2, 9}), Error);
  CHECK_THROWS_AS(decode({2, 2, 9}), Error);
  CHECK_THROWS_AS(decode({2, 5, 10}), Error);
  const std::vector<std::vector<uint32_t>> tokens(3);
  Matrix<float> result(3, 8);
  const auto attend = [&](int q_heads, size_t selections, size_t lists) {
    attend_chosen(*view, *view, {q_heads, out, selections, std::span(tokens).first(lists)}, result);
  };
  attend(1, 1, 3);
  CHECK_THROWS_AS(attend(1, 1, 2), Error);
  CHECK_THROWS_AS(attend(1, 2, 3), Error);
  CHECK_THROWS_AS(attend(2, 1, 3), Error);
  CHECK_THROWS_AS(attend(0, 1, 3), Error);
}

}  // namespace chosen_test
