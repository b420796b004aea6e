// Next-token measures, intervals by document, and the Gaussian rate-distortion bound.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/covariance.hpp"
#include "lib/linalg/eigen.hpp"
#include "lib/metrics/next_token.hpp"
#include "lib/metrics/reconstruction.hpp"
#include "test/test.hpp"

namespace model_metrics_test {

using namespace kvcodec;

namespace {

std::vector<float> random_logits(size_t n, double loudness, Rng& rng) {
  std::vector<float> logits(n);
  for (float& logit : logits) logit = static_cast<float>(loudness * rng.normal());
  return logits;
}

std::vector<double> probabilities(const std::vector<float>& logits) {
  const double largest = *std::ranges::max_element(logits);
  std::vector<double> p;
  double sum = 0;
  for (const float logit : logits) sum += p.emplace_back(std::exp(logit - largest));
  for (double& value : p) value /= sum;
  return p;
}

}  // namespace

TEST_CASE("next token: surprise and divergence are those of softmax in double") {
  Rng rng(21);
  for (const size_t n : {1, 2, 17, 1023, 1024, 1025, 5000})
    for (const double loudness : {0.1, 3.0, 30.0}) {
      CAPTURE(n);
      CAPTURE(loudness);
      const auto a = random_logits(n, loudness, rng), b = random_logits(n, loudness, rng);
      const auto p = probabilities(a), q = probabilities(b);
      const NextToken first(a), second(b);
      double expected = 0;
      for (size_t i = 0; i < n; ++i)
        if (p[i] > 0) expected += p[i] * (std::log(p[i]) - std::log(q[i]));
      for (size_t i = 0; i < n; i += n / 7 + 1)
        CHECK(first.surprise(static_cast<uint32_t>(i)) ==
              doctest::Approx(-std::log(p[i])).epsilon(1e-6).scale(1));
      CHECK_EQ(first.best(), std::ranges::max_element(p) - p.begin());
      std::vector<float> weights(n), in_place = a;
      const ReferenceToken reference(first, weights), same(NextToken(in_place), in_place);
      CHECK(reference.divergence(second) == doctest::Approx(expected).epsilon(1e-5).scale(1));
      CHECK_EQ(same.divergence(second), reference.divergence(second));
      CHECK_EQ(reference.divergence(first), 0);
      CHECK_EQ(reference.best(), first.best());
    }
  const std::vector<float> level(5, 2.0f);
  CHECK_EQ(NextToken(level).best(), 0);
  CHECK_THROWS_AS(NextToken(level).surprise(5), Error);
  CHECK_THROWS_AS(NextToken(std::span<const float>()), Error);
  std::vector<float> broken = level;
  broken[3] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> weights(5);
  const ReferenceToken reference(NextToken(level), weights);
  CHECK(std::isnan(reference.divergence(NextToken(broken))));
  CHECK_THROWS_AS(reference.divergence(NextToken(std::span(level).first(4))), Error);
  CHECK_THROWS_AS(ReferenceToken(NextToken(level), std::span(weights).first(4)), Error);
}

TEST_CASE("Student's t: the points of the tables") {
  // NIST/SEMATECH e-Handbook, table 1.3.6.7.2, column 0.975
  const std::pair<uint64_t, double> table[] = {{1, 12.706}, {2, 4.303},  {3, 3.182},  {4, 2.776},  {5, 2.571},
                                               {9, 2.262},  {29, 2.045}, {99, 1.984}, {100, 1.984}};
  for (const auto& [degrees, point] : table)
    CHECK(student_975(degrees) == doctest::Approx(point).epsilon(0.002));
  CHECK(std::isinf(student_975(0)));
}

TEST_CASE("intervals by document: the mean of all tokens, and 95 of 100 intervals hold the truth") {
  const std::vector<double> sums = {3, 0, 8}, counts = {1, 0, 2};
  CHECK(mean_by_document(sums, counts).mean == doctest::Approx(11.0 / 3));
  const std::vector<double> one = {3}, of_one = {1};
  CHECK(std::isinf(mean_by_document(one, of_one).half_width));
  // Two documents, 3 of 1 and 8 of 2: residuals -2/3 and 2/3, t = 12.7062 of one degree; n / (n - 1) = 2.
  CHECK(mean_by_document(sums, counts).half_width ==
        doctest::Approx(12.706204736174707 * std::sqrt(2 * (8.0 / 9)) / 3));
  Rng rng(22);
  int held = 0;
  constexpr int kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> s, c;
    for (int document = 0; document < 12; ++document) {
      const double own = rng.normal();  // what the document's tokens have in common
      c.push_back(50 + static_cast<double>(rng.below(50)));
      s.push_back(c.back() * (5 + own));
    }
    const Estimate estimate = mean_by_document(s, c);
    held += std::abs(estimate.mean - 5) <= estimate.half_width;
  }
  CHECK_GE(held, kRounds * 0.93);
  CHECK_LE(held, kRounds * 0.97);
}

TEST_CASE("Wilson's interval: known cases") {
  // statsmodels.stats.proportion.proportion_confint(k, n, method="wilson")
  const ShareEstimate some = share_of(8, 10), none = share_of(0, 20), all = share_of(20, 20);
  CHECK(some.low == doctest::Approx(0.4901625).epsilon(1e-5));
  CHECK(some.high == doctest::Approx(0.9433178).epsilon(1e-5));
  CHECK(none.low == doctest::Approx(0).scale(1));
  CHECK(none.high == doctest::Approx(0.1611252).epsilon(1e-5));
  CHECK(all.low == doctest::Approx(0.8388748).epsilon(1e-5));
  CHECK_EQ(share_of(0, 0).high, 1);
}

TEST_CASE("predictions: means over all tokens, a rise over the same document's reference") {
  const std::vector<PredictionSums> own = {{4, 8.0, 1.0, 3, 2}, {1, 6.0, 0.5, 1, 0}, {0, 0, 0, 0, 0}};
  const std::vector<PredictionSums> reference = {{4, 6.0, 0, 4, 3}, {1, 7.0, 0, 1, 1}, {0, 0, 0, 0, 0}};
  const PredictionEstimates found = estimate_predictions(own, reference);
  CHECK(found.surprise.mean == doctest::Approx(14.0 / 5));
  CHECK(found.rise.mean == doctest::Approx(1.0 / 5));
  CHECK(found.divergence.mean == doctest::Approx(1.5 / 5));
  CHECK(found.same_best.mean == doctest::Approx(4.0 / 5));
  CHECK(found.right.mean == doctest::Approx(2.0 / 5));
  // The interval of the rise is that of the differences, 2 (4 tokens) and -1 (1 token), not of the surprises.
  const std::vector<double> differences = {2, -1}, counts = {4, 1};
  CHECK(found.rise.half_width == doctest::Approx(mean_by_document(differences, counts).half_width));
  CHECK_LT(found.rise.half_width, found.surprise.half_width);
  CHECK_THROWS_AS(estimate_predictions(own, std::span(reference).first(2)), Error);
  std::vector<PredictionSums> other = reference;
  other[1].tokens = 2;
  CHECK_THROWS_AS(estimate_predictions(own, other), Error);
}

TEST_CASE("eigenvalues: of diagonal, repeated and random matrices with known ones") {
  Rng rng(23);
  for (const size_t n : {0, 1, 2, 3, 8, 33, 100}) {
    CAPTURE(n);
    std::vector<double> values(n);
    for (size_t i = 0; i < n; ++i)
      values[i] = i % 5 == 0 ? 1.0 : rng.normal() * std::exp2(rng.uniform(-8, 4));
    Matrix<double> a(n, n);
    for (size_t i = 0; i < n; ++i) a(i, i) = values[i];
    // Turned by reflections 1 - 2 u u' of random directions.
    for (int turn = 0; turn < 4; ++turn) {
      std::vector<double> u(n);
      double norm = 0;
      for (double& x : u) x = rng.normal(), norm += x * x;
      const auto reflect = [&](auto&& at) {
        for (size_t j = 0; j < n; ++j) {
          double dot = 0;
          for (size_t i = 0; i < n; ++i) dot += u[i] * at(i, j);
          for (size_t i = 0; i < n; ++i) at(i, j) -= 2 / norm * dot * u[i];
        }
      };
      reflect([&](size_t i, size_t j) -> double& { return a(i, j); });
      reflect([&](size_t i, size_t j) -> double& { return a(j, i); });
    }
    std::ranges::sort(values);
    const auto found = symmetric_eigenvalues(a);
    REQUIRE_EQ(found.size(), n);
    double largest = 0;
    for (const double value : values) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < n; ++i) CHECK_LE(std::abs(found[i] - values[i]), 1e-12 * largest * double(n));
  }
  Matrix<double> bad(2, 2);
  bad(0, 1) = bad(1, 0) = NAN;
  CHECK_THROWS_AS(symmetric_eigenvalues(bad), Error);
  CHECK_THROWS_AS(symmetric_eigenvalues(Matrix<double>(2, 3)), Error);
}

TEST_CASE("covariance: that of the definition, in any pieces and for any number of threads") {
  Rng rng(24);
  Matrix<float> rows(700, 70);
  for (size_t i = 0; i < rows.rows(); ++i)
    for (size_t j = 0; j < rows.cols(); ++j)
      rows(i, j) =
          static_cast<float>(100.0 * double(j % 3) + (j > 0 ? rows(i, j - 1) * 0.3 : 0) + rng.normal());
  CovarianceSums all(70), pieces(70), threaded(70);
  all.add(rows);
  for (size_t first = 0; first < 700; first += 41)
    pieces.add(rows.view().rows(first, std::min<size_t>(41, 700 - first)));
  set_num_threads(5);
  threaded.add(rows);
  set_num_threads(0);
  const Matrix<double> a = all.covariance(), b = pieces.covariance(), c = threaded.covariance();
  for (size_t i = 0; i < 70; i += 7)
    for (size_t j = 0; j < 70; j += 3) {
      double mean_i = 0, mean_j = 0, product = 0;
      for (size_t t = 0; t < 700; ++t) mean_i += rows(t, i) / 700.0, mean_j += rows(t, j) / 700.0;
      for (size_t t = 0; t < 700; ++t) product += (rows(t, i) - mean_i) * (rows(t, j) - mean_j) / 700;
      CHECK_LE(std::abs(a(i, j) - product), 1e-4);
      CHECK_LE(std::abs(b(i, j) - product), 1e-4);
      CHECK_EQ(c(i, j), a(i, j));
    }
}

TEST_CASE("Gaussian bound: one variance is the formula, many are the water level's, rate undoes distortion") {
  const std::vector<double> one = {4.0};
  for (const double bits : {0.0, 0.5, 1.0, 4.0})
    CHECK(gaussian_distortion(one, bits) == doctest::Approx(4 * std::exp2(-2 * bits)));
  // Level 1: bits 1 and 0, errors 1 and 0.5.
  const std::vector<double> two = {4.0, 0.5};
  CHECK(gaussian_distortion(two, 0.5) == doctest::Approx(0.75));
  Rng rng(25);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> variances(1 + rng.below(40));
    for (double& value : variances) value = rng.below(6) == 0 ? 0 : std::exp2(rng.uniform(-20, 6));
    const double bits = rng.uniform(0, 6), error = gaussian_distortion(variances, bits);
    CHECK_LE(gaussian_distortion(variances, bits + 0.1), error);
  }
  CHECK_EQ(gaussian_distortion({}, 1), 0);
}

TEST_CASE("attention error: nothing without error, and the definitions, in double, with one") {
  Rng rng(26);
  constexpr int kHeads = 2, kQueryHeads = 4, kDims = 8, kValueDims = 6;
  const size_t tokens = 50, n = 40;
  const auto random = [&](size_t rows, size_t cols, double loudness) {
    Matrix<float> matrix(rows, cols);
    for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(loudness * rng.normal());
    return matrix;
  };
  const Matrix<float> keys = random(tokens, 16, 1), values = random(tokens, 12, 1),
                      queries = random(n, 32, 2);
  Matrix<float> other_keys = keys, other_values = values;
  std::vector<uint64_t> visible;
  for (size_t i = 0; i < n; ++i) visible.push_back(1 + rng.below(tokens));
  AttentionErrorMeter meter(2, kQueryHeads, 5);
  meter.add(0, {keys, values, other_keys, other_values, queries, visible, kHeads});
  CHECK_EQ(meter.sums().queries, n * kQueryHeads);
  CHECK_EQ(meter.sums().logit_rms(), 0);
  CHECK_EQ(meter.sums().mean_divergence(), 0);
  CHECK_EQ(meter.sums().mean_output_error(), 0);
  CHECK_EQ(meter.sums().output_nmse(), 0);
  CHECK_EQ(meter.sums().mean_overlap(), 1);

  for (size_t i = 0; i < keys.size(); ++i) other_keys.data()[i] += static_cast<float>(0.5 * rng.normal());
  for (size_t i = 0; i < values.size(); ++i) other_values.data()[i] += static_cast<float>(0.1 * rng.normal());
  meter.add(1, {keys, values, other_keys, other_values, queries, visible, kHeads});
  for (int head = 0; head < kQueryHeads; ++head) {
    double logit_error = 0, divergence = 0, output_error = 0, noise = 0, signal = 0, overlap = 0;
    uint64_t logits = 0;
    for (size_t i = 0; i < n; ++i) {
      const size_t first = static_cast<size_t>(head / 2 * kDims), seen = visible[i],
                   first_value = static_cast<size_t>(head / 2 * kValueDims);
      std::vector<double> a(seen), b(seen);
      for (size_t t = 0; t < seen; ++t)
        for (size_t c = 0; c < kDims; ++c) {
          const double q = queries(i, static_cast<size_t>(head) * kDims + c) / std::sqrt(8.0);
          a[t] += q * keys(t, first + c);
          b[t] += q * other_keys(t, first + c);
        }
      const auto softmax = [](const std::vector<double>& x) {
        std::vector<double> p;
        double sum = 0;
        for (const double value : x) sum += p.emplace_back(std::exp(value));
        for (double& value : p) value /= sum;
        return p;
      };
      const auto p = softmax(a), q = softmax(b);
      double error = 0, energy = 0;
      for (size_t c = 0; c < kValueDims; ++c) {
        double o = 0, other = 0;
        for (size_t t = 0; t < seen; ++t)
          o += p[t] * values(t, first_value + c), other += q[t] * other_values(t, first_value + c);
        error += (o - other) * (o - other);
        energy += o * o;
      }
      output_error += std::sqrt(error / energy);
      noise += error, signal += energy;
      for (size_t t = 0; t < seen; ++t) {
        logit_error += (a[t] - b[t]) * (a[t] - b[t]);
        divergence += p[t] * std::log(p[t] / q[t]);
        // In the top 5 of both: fewer than 5 larger ones.
        const auto larger = [&](const std::vector<double>& x) {
          return std::ranges::count_if(x, [&](double value) { return value > x[t]; });
        };
        overlap += larger(a) < 5 && larger(b) < 5 ? 1.0 / double(std::min<size_t>(5, seen)) : 0;
      }
      logits += seen;
    }
    const AttentionErrorSums sums = meter.sums(1, head);
    CHECK_EQ(sums.queries, n);
    CHECK_EQ(sums.logits, logits);
    CHECK(sums.logit_rms() == doctest::Approx(std::sqrt(logit_error / double(logits))).epsilon(1e-5));
    CHECK(sums.mean_divergence() == doctest::Approx(divergence / double(n)).epsilon(1e-4));
    CHECK(sums.mean_output_error() == doctest::Approx(output_error / double(n)).epsilon(1e-4));
    CHECK(sums.output_nmse() == doctest::Approx(noise / signal).epsilon(1e-4));
    CHECK(sums.mean_overlap() == doctest::Approx(overlap / double(n)).epsilon(1e-6));
  }
  AttentionErrorMeter without_top(1, kQueryHeads, 0);
  without_top.add(0, {keys, values, other_keys, other_values, queries, visible, kHeads});
  CHECK_EQ(without_top.sums().mean_overlap(), 0);
  CHECK_EQ(without_top.sums().divergence, meter.sums(1).divergence);

  // A window, a cap and a sink: of one query and head, by hand.
  const std::vector<uint64_t> from{37}, seen{39};
  std::vector<float> sinks(kQueryHeads, 0.25f);
  AttentionErrorMeter formed(1, kQueryHeads, 0);
  formed.add(0, {keys, values, other_keys, other_values, queries.view().rows(0, 1), seen, kHeads, from, 0.5f,
                 sinks});
  double p[2][3], sums[2] = {}, wanted = 0, o[2] = {}, squares = 0;
  for (size_t which = 0; which < 2; ++which) {
    p[which][2] = std::exp(0.25);
    for (size_t t = 0; t < 2; ++t) {
      double score = 0;
      for (size_t c = 0; c < kDims; ++c)
        score += queries(0, c) / std::sqrt(8.0) * (which == 0 ? keys : other_keys)(from[0] + t, c);
      p[which][t] = std::exp(0.5 * std::tanh(score / 0.5));
    }
    for (double& weight : p[which]) sums[which] += weight;
  }
  for (size_t t = 0; t < 3; ++t)
    wanted += p[0][t] / sums[0] * std::log(p[0][t] / sums[0] / (p[1][t] / sums[1]));
  for (size_t c = 0; c < kValueDims; ++c) {
    for (size_t which = 0; which < 2; ++which) {
      o[which] = 0;
      for (size_t t = 0; t < 2; ++t)
        o[which] += p[which][t] / sums[which] * (which == 0 ? values : other_values)(from[0] + t, c);
    }
    squares += (o[0] - o[1]) * (o[0] - o[1]);
  }
  CHECK_EQ(formed.sums(0, 0).logits, 2);
  CHECK_EQ(formed.sums(0, 0).divergence, doctest::Approx(wanted).epsilon(1e-4));
  CHECK_EQ(formed.sums(0, 0).output_noise, doctest::Approx(squares).epsilon(1e-4));

  other_keys(0, 0) = std::numeric_limits<float>::quiet_NaN();
  AttentionErrorMeter broken(1, kQueryHeads, 5);
  broken.add(0, {keys, values, other_keys, other_values, queries, visible, kHeads});
  CHECK(std::isnan(broken.sums().mean_divergence()));
  visible[3] = 0;
  CHECK_THROWS_AS(meter.add(0, {keys, values, other_keys, other_values, queries, visible, kHeads}), Error);
}

}  // namespace model_metrics_test
