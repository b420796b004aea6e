#include "cuda/kmeans/kmeans.hpp"

#include <algorithm>
#include <vector>

#include "lib/cluster/cluster_index.hpp"
#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/cuda/device_case.hpp"

namespace kmeans_test {

using namespace kvcodec;

TEST_CASE("device: k-means of several sets is lib's") {
  NEEDS_DEVICE();
  const uint64_t seed = 41;
  INFO("seed ", seed);
  Rng rng(seed);
  const Matrix<float> first = test::random_rows(rng, 300, 24), second = test::random_rows(rng, 40, 24),
                      none(0, 24);
  Matrix<float> few = test::random_rows(rng, 60, 24);  // three different rows: clusters run empty
  for (size_t i = 3; i < 60; ++i) std::copy_n(few.row(i % 3).begin(), 24, few.row(i).begin());
  const std::vector<KmeansTask> tasks{{.rows = first, .clusters = 9, .stream = 1},
                                      {.rows = none, .clusters = 4, .stream = 2},
                                      {.rows = second, .clusters = 5, .stream = 3},
                                      {.rows = few, .clusters = 8, .stream = 4}};
  for (const Metric metric : {Metric::cosine, Metric::l2, Metric::inner_product}) {
    const KmeansOptions options{.metric = metric, .rounds = 6, .seed = 5};
    const auto expected = kmeans(tasks, options), found = cuda::kmeans(tasks, options);
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      CHECK(found[i].labels == expected[i].labels);
      CHECK(found[i].rounds == expected[i].rounds);
      CHECK(found[i].converged == expected[i].converged);
      REQUIRE(found[i].centroids.size() == expected[i].centroids.size());
      CHECK(std::equal(found[i].centroids.data(), found[i].centroids.data() + found[i].centroids.size(),
                       expected[i].centroids.data()));
    }
  }
}

TEST_CASE("device: indices of semantic clusters are lib's") {
  NEEDS_DEVICE();
  Rng rng(42);
  const Matrix<float> keys = test::random_rows(rng, 250, 16);
  ClusterOptions options;
  options.batch = 60, options.batch_clusters = 2, options.clusters = 6, options.rounds = 5;
  const std::vector<uint64_t> ends{120, 180, 240};
  ClusterIndex expected(16, 10), found(16, 10);
  const auto add = [&](ClusterIndex& index, const KmeansFunction& cluster) {
    const ClusterTask task{&index, keys.view().rows(0, 240), ends, 1};
    add_batches({&task, 1}, options, 7, {}, cluster);
  };
  add(expected, {});
  add(found, cuda::kmeans);
  CHECK(std::ranges::equal(found.offsets(), expected.offsets()));
  CHECK(std::ranges::equal(found.ids(), expected.ids()));
  CHECK(std::equal(found.centroids().data(), found.centroids().data() + found.clusters() * 16,
                   expected.centroids().data()));
}

TEST_CASE("device: k-means refuses what lib refuses") {
  NEEDS_DEVICE();
  Matrix<float> rows(3, 4);
  rows(1, 2) = 1e20f;
  const KmeansTask task{.rows = rows, .clusters = 2};
  CHECK_THROWS_AS(cuda::kmeans({&task, 1}, {}), Error);
}

}  // namespace kmeans_test
