#include "lib/attention/selector.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/metrics/selection.hpp"
#include "test/test.hpp"

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
};

}  // namespace

TEST_CASE("selectors: the best by their scores, alone and shared by a group") {
  Rng rng(31);
  for (const size_t tokens : {1, 15, 16, 17, 900, 5000}) {
    const size_t dims = 32;
    const Matrix<float> keys = gaussian(tokens, dims, rng), queries = gaussian(3, dims, rng);
    const CacheRows rows(keys, keys);
    const OracleSelector oracle(rows);
    const Signs signs(keys);
    const SignSelector sign(signs.codebook, signs.index);
    QuestSelector quest(dims);
    quest.append(keys);
    const Selector* selectors[] = {&oracle, &sign, &quest};
    for (const Selector* selector : selectors) {
      CHECK_EQ(selector->tokens(), tokens);
      CHECK_EQ(selector->dims(), dims);
      Matrix<float> scores(3, tokens);
      selector->scores(queries, scores);
      for (const size_t budget : {size_t{0}, size_t{1}, size_t{40}, tokens, tokens + 1}) {
        for (size_t q = 0; q < 3; ++q)
          CHECK((selector->select(queries.row(q), budget) == top_k(scores.row(q), budget)));
        std::vector<float> largest(tokens), mean(tokens);
        for (size_t t = 0; t < tokens; ++t) {
          largest[t] = std::max({scores(0, t), scores(1, t), scores(2, t)});
          mean[t] = (scores(0, t) + scores(1, t) + scores(2, t)) / 3;
        }
        CHECK((selector->select_shared(queries, Share::max, budget) == top_k(largest, budget)));
        CHECK((selector->select(queries.row(1), budget, Order::by_id) ==
               top_k(scores.row(1), budget, Order::by_id)));
        CHECK((selector->select_shared(queries, Share::max, budget, Order::by_id) ==
               top_k(largest, budget, Order::by_id)));
        // Rounding may exchange neighbours: compare the scores.
        const auto by_mean = selector->select_shared(queries, Share::mean, budget),
                   expected = top_k(mean, budget);
        REQUIRE_EQ(by_mean.size(), expected.size());
        for (size_t i = 0; i < by_mean.size(); ++i)
          CHECK_LE(std::abs(by_mean[i].score - expected[i].score), 1e-4 * (1 + std::abs(expected[i].score)));
      }
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
          double most = -std::numeric_limits<double>::infinity();
          for (size_t other = t / page * page; other < std::min(tokens, (t / page + 1) * page); ++other)
            most = std::max(most, double{queries(q, j)} * keys(other, j));
          bound += most;
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
  const float query[] = {1};
  const auto selected = ids_in_order(quest.select(query, 20));
  REQUIRE_EQ(selected.size(), 20);
  for (uint32_t i = 0; i < 20; ++i) CHECK_EQ(selected[i], 16 + i);
}

TEST_CASE("selectors refuse what does not fit") {
  Matrix<float> keys(20, 8);
  const Signs signs(keys);
  const Matrix<float> wide(20, 12);
  const Signs others(wide);
  CHECK_THROWS_AS(SignSelector(signs.codebook, others.index), Error);
  const SignSelector sign(signs.codebook, signs.index);
  CHECK_THROWS_AS(sign.select_shared(MatrixView<const float>(keys.data(), 0, 8), Share::max, 3), Error);
  CHECK_THROWS_AS(sign.select(std::vector<float>(9), 3), Error);
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
