#include "lib/kmeans/kmeans.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace kmeans_test {

using namespace kvcodec;

namespace {

/// The clusters of one set of rows.
Clustering kmeans(MatrixView<const float> rows, size_t clusters, const KmeansOptions& options) {
  const KmeansTask task{.rows = rows, .clusters = clusters};
  return std::move(kvcodec::kmeans({&task, 1}, options).front());
}

Matrix<float> gaussian(size_t rows, size_t cols, Rng& rng, double deviation = 1) {
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(deviation * rng.normal());
  return matrix;
}

/// Rows around a few centres, some of them twice, with a channel that is far from zero.
Matrix<float> clustered(size_t rows, size_t dims, size_t centres, Rng& rng) {
  const Matrix<float> centre = gaussian(centres, dims, rng, 3);
  Matrix<float> matrix = gaussian(rows, dims, rng);
  for (size_t i = 0; i < rows; ++i) {
    const size_t c = rng.below(centres);
    for (size_t j = 0; j < dims; ++j) matrix(i, j) += centre(c, j) + (j == 3 ? 20.0f : 0.0f);
    if (i % 10 == 9) std::ranges::copy(matrix.row(i - 1), matrix.row(i).begin());
  }
  return matrix;
}

/// Everything that kmeans.hpp promises about a result.
void check_partition(const Clustering& result, MatrixView<const float> rows, size_t clusters) {
  const size_t k = result.centroids.rows();
  CHECK_LE(k, std::min(clusters, rows.rows()));
  REQUIRE_EQ(result.labels.size(), rows.rows());
  if (rows.rows() == 0) return;
  CHECK_GE(k, 1);
  const auto sorted = sort_by_cluster(result.labels, k);
  CHECK_EQ(sorted.offsets.back(), rows.rows());
  std::vector<bool> seen(rows.rows());
  for (size_t c = 0; c < k; ++c) {
    REQUIRE_LT(sorted.offsets[c], sorted.offsets[c + 1]);  // no empty ones
    std::vector<double> mean(rows.cols());
    for (uint64_t i = sorted.offsets[c]; i < sorted.offsets[c + 1]; ++i) {
      const uint32_t row = sorted.rows[i];
      CHECK_EQ(result.labels[row], c);
      CHECK_FALSE(seen[row]);
      seen[row] = true;
      if (i > sorted.offsets[c]) CHECK_LT(sorted.rows[i - 1], row);
      for (size_t j = 0; j < rows.cols(); ++j) mean[j] += rows(row, j);
    }
    for (size_t j = 0; j < rows.cols(); ++j)
      CHECK_EQ(result.centroids(c, j),
               static_cast<float>(mean[j] / double(sorted.offsets[c + 1] - sorted.offsets[c])));
  }
}

}  // namespace

TEST_CASE("k-means: a partition into means, for all metrics and sizes") {
  Rng rng(52);
  for (const Metric metric : {Metric::cosine, Metric::l2, Metric::inner_product})
    for (const size_t rows_count : {0, 1, 2, 7, 8, 9, 100, 1000})
      for (const size_t clusters : {1, 2, 5, 64}) {
        const Matrix<float> rows = clustered(rows_count, 24, 6, rng);
        check_partition(kmeans(rows, clusters, {.metric = metric, .seed = 9}), rows, clusters);
      }
}

TEST_CASE("k-means: Lloyd's rounds, step by step against a plain one") {
  Rng rng(53);
  const size_t n = 600, dims = 20, k = 24;
  const Matrix<float> rows = clustered(n, dims, 30, rng);
  for (const Metric metric : {Metric::cosine, Metric::l2, Metric::inner_product}) {
    Clustering before = kmeans(rows, k, {.metric = metric, .rounds = 1, .seed = 4});
    for (size_t rounds = 2; rounds < 12; ++rounds) {
      const Clustering after = kmeans(rows, k, {.metric = metric, .rounds = rounds, .seed = 4});
      if (before.centroids.rows() == after.centroids.rows() && after.centroids.rows() == k) {
        // One round more moves every row to the best of the centroids before, except for ties in rounding.
        for (size_t i = 0; i < n; ++i) {
          const auto score = [&](size_t c) {
            double product = 0, square = 0;
            for (size_t j = 0; j < dims; ++j) {
              product += double{rows(i, j)} * before.centroids(c, j);
              square += double{before.centroids(c, j)} * before.centroids(c, j);
            }
            if (metric == Metric::cosine) return product / std::sqrt(square);
            return metric == Metric::l2 ? product - square / 2 : product;
          };
          double best = score(0);
          for (size_t c = 1; c < k; ++c) best = std::max(best, score(c));
          CHECK_GE(score(after.labels[i]), best - 1e-4 * (1 + std::abs(best)));
        }
      }
      before = after;
    }
  }
}

TEST_CASE("k-means stops where nothing changes, and finds separate groups") {
  Rng rng(54);
  const size_t groups = 6;
  Matrix<float> rows(300, 16);
  for (size_t i = 0; i < rows.rows(); ++i)
    for (size_t j = 0; j < 16; ++j)
      rows(i, j) = (j == i % groups ? 10.0f : 0.0f) + static_cast<float>(0.01 * rng.normal());
  for (const Metric metric : {Metric::cosine, Metric::l2}) {
    const Clustering result = kmeans(rows, groups, {.metric = metric, .rounds = 100, .seed = 3});
    CHECK(result.converged);
    CHECK_LT(result.rounds, 100);
    REQUIRE_EQ(result.centroids.rows(), groups);
    // Six starts never hit six groups exactly: clusters without rows moved to where they were missing.
    for (size_t i = groups; i < rows.rows(); ++i) CHECK_EQ(result.labels[i], result.labels[i % groups]);
    CHECK_EQ(std::set<uint32_t>(result.labels.begin(), result.labels.end()).size(), groups);
    const Clustering same = kmeans(rows, groups, {.metric = metric, .rounds = result.rounds + 7, .seed = 3});
    CHECK_EQ(same.labels, result.labels);
    CHECK_EQ(same.rounds, result.rounds);
  }
}

TEST_CASE("k-means of degenerate rows") {
  const KmeansOptions options{.seed = 1};
  Matrix<float> equal(50, 8);
  for (size_t i = 0; i < equal.size(); ++i) equal.data()[i] = static_cast<float>(i % 8) - 3;
  for (const Metric metric : {Metric::cosine, Metric::l2, Metric::inner_product}) {
    const Clustering one = kmeans(equal, 5, {.metric = metric});
    CHECK_EQ(one.centroids.rows(), 1);
    check_partition(one, equal, 5);
    const Matrix<float> zeros(50, 8);
    check_partition(kmeans(zeros, 5, {.metric = metric}), zeros, 5);
    Matrix<float> some_zeros = equal;
    std::fill_n(some_zeros.data(), 80, 0.0f);
    check_partition(kmeans(some_zeros, 5, {.metric = metric}), some_zeros, 5);
  }
  CHECK_EQ(kmeans(Matrix<float>(0, 8), 5, options).labels.size(), 0);
  CHECK_EQ(kmeans(equal.view().rows(0, 1), 5, options).labels, std::vector<uint32_t>{0});
  CHECK_THROWS_AS(kmeans(equal, 0, options), Error);
  CHECK_THROWS_AS(kmeans(equal, 3, {.rounds = 0}), Error);
  Matrix<float> large(20, 8);
  large(3, 3) = 1e20f;
  const KmeansTask task{.rows = large, .clusters = 3, .first_row = 100};
  constexpr const char* kMessage = "row 103 has a norm of 1e+20; beyond 1e+15 products may overflow";
  CHECK_THROWS_WITH_AS(kmeans({&task, 1}, options), kMessage, Error);
  KmeansTask named = task;
  named.name = "head 2";
  CHECK_THROWS_WITH_AS(kmeans({&named, 1}, options), (std::string("head 2: ") + kMessage).c_str(), Error);
}

TEST_CASE("k-means: the same for any number of threads and SIMD level, alone and among others (long)") {
  Rng rng(55);
  std::vector<Matrix<float>> sets;
  for (const size_t rows : {700, 0, 13, 1200}) sets.push_back(clustered(rows, 40, 9, rng));
  std::vector<KmeansTask> tasks;
  for (size_t i = 0; i < sets.size(); ++i) tasks.push_back({.rows = sets[i], .clusters = 17, .stream = i});
  for (const Metric metric : {Metric::cosine, Metric::l2, Metric::inner_product}) {
    const KmeansOptions options{.metric = metric, .rounds = 6, .seed = 77};
    const auto expected = kmeans(tasks, options);
    const auto same = [](const Clustering& a, const Clustering& b) {
      return a.labels == b.labels && a.rounds == b.rounds &&
             std::equal(a.centroids.data(), a.centroids.data() + a.centroids.size(), b.centroids.data(),
                        b.centroids.data() + b.centroids.size());
    };
    for (const int threads : {1, 2, 5})
      for (const SimdLevel level : test::simd_levels()) {
        const test::AtLevel at(level);
        set_num_threads(threads);
        const auto results = kmeans(tasks, options);
        for (size_t i = 0; i < results.size(); ++i) {
          CHECK(same(results[i], expected[i]));
          CHECK(same(kmeans({&tasks[i], 1}, options)[0], expected[i]));
        }
      }
    set_num_threads(0);
    const auto other = kmeans(tasks, {.metric = metric, .rounds = 6, .seed = 78});
    CHECK_NE(other[3].labels, expected[3].labels);
  }
}

}  // namespace kmeans_test
