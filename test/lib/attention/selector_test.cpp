#include "lib/attention/selector.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/metrics/reconstruction.hpp"
#include "test/test.hpp"

namespace selector_test {

using namespace kvcodec;

namespace {

Matrix<float> gaussian(size_t rows, size_t cols, Rng& rng) {
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(rng.normal());
  return matrix;
}

struct Signs {
  Matrix<uint8_t> codes;
  SignCodebook codebook;
  SignIndex index;

  explicit Signs(const Matrix<float>& keys)
      : codes(keys.rows(), sign_row_bytes(keys.cols())), index(keys.cols()) {
    encode_signs(keys, 1, codes);
    codebook = build_codebooks(keys, codes, 1)[0];
    index.append(codes);
  }
  /// For keys that are not centred.
  SignFit fit() const { return {codebook, std::vector<float>(index.dims())}; }
};

}  // namespace

TEST_CASE("selectors: the oracle scores products, sign codes the sums of their tables") {
  Rng rng(31);
  for (const size_t tokens : {1, 16, 17, 900}) {
    const size_t dims = 32;
    const Matrix<float> keys = gaussian(tokens, dims, rng), queries = gaussian(3, dims, rng);
    const Signs signs(keys);
    const OracleSelector oracle(keys), keeps{Matrix<float>(keys)};
    const SignSelector sign(signs.fit(), signs.index);
    const Selector* selectors[] = {&oracle, &keeps, &sign};
    for (const Selector* selector : selectors) CHECK_EQ(selector->tokens(), tokens);
    Matrix<float> products(3, tokens), scores(3, tokens), own(3, tokens);
    dot_products(queries, keys, products);
    oracle.scores(queries, scores);
    keeps.scores(queries, own);
    for (size_t q = 0; q < 3; ++q) {
      CHECK(std::ranges::equal(scores.row(q), products.row(q)));
      CHECK(std::ranges::equal(own.row(q), products.row(q)));
    }
    sign.scores(queries, scores);
    for (size_t q = 0; q < 3; ++q) {
      signs.index.scores(SignTable(signs.codebook, queries.row(q)), own.row(q));
      CHECK(std::ranges::equal(scores.row(q), own.row(q)));
    }
  }
}

TEST_CASE("Quest: a page's score is no less than any product in it, and exact bounds by channel") {
  Rng rng(32);
  for (const size_t page : {1, 3, 16}) {
    const size_t tokens = 203, dims = 20;
    const Matrix<float> keys = gaussian(tokens, dims, rng), queries = gaussian(4, dims, rng);
    QuestSelector quest(dims, page);
    for (size_t first = 0; first < tokens; first += 7)  // appended as if there at once
      quest.append(keys.view().rows(first, std::min<size_t>(7, tokens - first)));
    Matrix<float> scores(4, tokens);
    quest.scores(queries, scores);
    for (size_t q = 0; q < 4; ++q)
      for (size_t t = 0; t < tokens; ++t) {
        double bound = 0, product = 0;
        for (size_t j = 0; j < dims; ++j) {
          double largest = -std::numeric_limits<double>::infinity();
          for (size_t other = t / page * page; other < std::min(tokens, (t / page + 1) * page); ++other)
            largest = std::max(largest, double{queries(q, j)} * keys(other, j));
          bound += largest;
          product += double{queries(q, j)} * keys(t, j);
        }
        CHECK_EQ(scores(q, t), doctest::Approx(bound).epsilon(1e-5).scale(1));
        CHECK_GE(scores(q, t), product - 1e-4);
      }
  }
  CHECK_THROWS_AS(QuestSelector(8, 0), Error);
  QuestSelector quest(8);
  CHECK_THROWS_AS(quest.append(Matrix<float>(1, 9)), Error);
}

TEST_CASE("Quest takes whole pages, best first, and trims the last") {
  Matrix<float> keys(48, 1);
  for (size_t t = 0; t < 48; ++t) keys(t, 0) = t / 16 == 1 ? 5.0f : t / 16 == 2 ? 3.0f : 0.0f;
  QuestSelector quest(1);
  quest.append(keys);
  Matrix<float> query(1, 1), scores(1, 48);
  query(0, 0) = 1;
  quest.scores(query, scores);
  const auto selected = ids_in_order(top_k(scores.row(0), 20));
  REQUIRE_EQ(selected.size(), 20);
  for (uint32_t i = 0; i < 20; ++i) CHECK_EQ(selected[i], 16 + i);
}

TEST_CASE("selectors refuse what does not fit") {
  Matrix<float> keys(20, 8);
  const Signs signs(keys);
  const Matrix<float> wide(20, 12);
  const Signs others(wide);
  CHECK_THROWS_AS(SignSelector(signs.fit(), others.index), Error);
  const SignSelector sign(signs.fit(), signs.index);
  Matrix<float> scores(2, 20);
  CHECK_THROWS_AS(sign.scores(Matrix<float>(1, 8), scores), Error);
  CHECK_THROWS_AS(sign.scores(Matrix<float>(2, 9), scores), Error);
}

TEST_CASE("selection metrics: recall, mass, error") {
  const uint32_t wanted[] = {9, 2, 5, 7}, selected[] = {5, 1, 2, 30, 31};
  CHECK_EQ(selection_recall(selected, wanted), 0.5);
  CHECK_EQ(selection_recall({}, wanted), 0);
  CHECK_EQ(selection_recall(selected, {}), 1);

  const float logits[] = {1, 3, -1e30f, 2};
  const uint32_t some[] = {3, 1};
  CHECK_EQ(mass_covered(logits, some), doctest::Approx((std::exp(2.0) + std::exp(3.0)) /
                                                       (std::exp(1.0) + std::exp(2.0) + std::exp(3.0))));
  CHECK_EQ(mass_covered(logits, {}), 0);
  CHECK_EQ(mass_covered({}, {}), 1);
  const uint32_t beyond[] = {4};
  CHECK_THROWS_AS(mass_covered(logits, beyond), Error);

  const float a[] = {3, 4.5f}, b[] = {3, 4}, zero[] = {0, 0};
  CHECK_EQ(relative_error(a, b), doctest::Approx(0.1));
  CHECK_EQ(relative_error(zero, zero), 0);
  CHECK_EQ(relative_error(a, zero), std::numeric_limits<double>::infinity());
  CHECK_EQ(relative_error(zero, b), 1);
  CHECK_THROWS_AS(relative_error(std::span(a, 1), b), Error);
}

}  // namespace selector_test
