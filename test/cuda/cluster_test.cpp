#include "cuda/cluster/cluster.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/kmeans/kmeans.hpp"
#include "lib/cluster/cluster_index.hpp"
#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/cuda/device_case.hpp"

namespace cluster_test {

using namespace kvcodec;

namespace {

/// An index of random clusters of tokens [sink, end), with centroids of which some are equal.
ClusterIndex random_index(Rng& rng, size_t dims, uint64_t sink, uint64_t end, size_t clusters,
                          size_t different) {
  ClusterIndex::Parts parts;
  parts.sink = sink;
  parts.batch_ends = {end};
  parts.centroids = Matrix<float>(clusters, dims);
  const Matrix<float> values = test::random_rows(rng, different, dims);
  for (size_t c = 0; c < clusters; ++c)
    std::ranges::copy(values.row(c % different), parts.centroids.row(c).begin());
  std::vector<uint32_t> labels(end - sink);
  for (size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<uint32_t>(i < clusters ? i : rng.below(clusters));
  rng.shuffle(labels);
  const RowsByCluster sorted = sort_by_cluster(labels, clusters);
  parts.offsets = sorted.offsets;
  for (const uint32_t row : sorted.rows) parts.ids.push_back(static_cast<uint32_t>(sink) + row);
  return ClusterIndex(std::move(parts));
}

struct Head {
  ClusterIndex index;
  uint64_t tokens;
  Matrix<float> queries;
};

}  // namespace

TEST_CASE("device: rows sorted by cluster are lib's") {
  NEEDS_DEVICE();
  const uint64_t seed = 61;
  INFO("seed ", seed);
  Rng rng(seed);
  for (const size_t rows : {0, 1, 31, 32, 33, 1024, 1025, 3300})
    for (const size_t clusters : {1, 2, 40, 300}) {
      CAPTURE(rows);
      CAPTURE(clusters);
      std::vector<uint32_t> labels(rows);
      for (uint32_t& label : labels)  // many in the first ones, hardly any in the last
        label = static_cast<uint32_t>(std::min(rng.below(clusters), rng.below(clusters)));
      const RowsByCluster expected = sort_by_cluster(labels, clusters);
      const cuda::RowsByCluster sorted(labels, clusters);
      const RowsByCluster found = sorted.read();
      CHECK(found.offsets == expected.offsets);
      CHECK(found.rows == expected.rows);
      if (rows != 33) continue;
      const Matrix<float> values = test::random_rows(rng, rows, 5);
      Matrix<float> means(clusters, 5), of_lib(clusters, 5);
      std::fill_n(means.data(), means.size(), 7.0f);
      std::fill_n(of_lib.data(), of_lib.size(), 7.0f);
      sorted.means_of(cuda::DeviceMatrix(values), means);
      for (size_t c = 0; c < clusters; ++c)
        if (expected.offsets[c] < expected.offsets[c + 1])
          mean_of(values,
                  std::span(expected.rows)
                      .subspan(expected.offsets[c], expected.offsets[c + 1] - expected.offsets[c]),
                  of_lib.row(c));
      CHECK(std::equal(means.data(), means.data() + means.size(), of_lib.data()));
    }
  CHECK_THROWS_AS(cuda::RowsByCluster(std::vector<uint32_t>{0, 3}, 3), Error);
}

TEST_CASE("device: selections by clusters are lib's") {
  NEEDS_DEVICE();
  const uint64_t seed = 62;
  INFO("seed ", seed);
  Rng rng(seed);
  std::vector<Head> heads;
  // Centroids that are all different, some equal, all equal; a sink, none; tokens that wait, none; one
  // cluster.
  heads.push_back({random_index(rng, 16, 4, 150, 20, 20), 150, test::random_rows(rng, 1, 16)});
  heads.push_back({random_index(rng, 21, 0, 333, 40, 7), 341, test::random_rows(rng, 3, 21)});
  heads.push_back({random_index(rng, 40, 16, 100, 9, 1), 170, test::random_rows(rng, 4, 40)});
  heads.push_back({random_index(rng, 8, 3, 40, 1, 1), 40, test::random_rows(rng, 2, 8)});
  heads.push_back({ClusterIndex(8, 5), 33, test::random_rows(rng, 2, 8)});
  heads.push_back({ClusterIndex(8, 50), 33, test::random_rows(rng, 1, 8)});
  heads.push_back({random_index(rng, 128, 2, 2000, 300, 300), 2000, test::random_rows(rng, 5, 128)});
  std::vector<cuda::DeviceClusterIndex> indices;
  for (const Head& head : heads) indices.emplace_back(head.index);
  for (const size_t budget : {0, 1, 3, 17, 31, 90, 146, 150, 151, 340, 1999, 5000}) {
    CAPTURE(budget);
    for (size_t i = 0; i < heads.size(); ++i) {
      CAPTURE(i);
      Matrix<float> scores(heads[i].queries.rows(), heads[i].tokens);
      ClusterSelector(heads[i].index, heads[i].tokens).scores(heads[i].queries, scores);
      std::vector<float> largest(scores.row(0).begin(), scores.row(0).end());
      for (size_t q = 1; q < scores.rows(); ++q)
        for (size_t t = 0; t < largest.size(); ++t) largest[t] = std::max(largest[t], scores(q, t));
      const TokenChoice choice{.queries = heads[i].queries, .visible = heads[i].tokens, .budget = budget};
      const auto selected = cuda::select_tokens(indices[i], heads[i].tokens, {&choice, 1}, true);
      CHECK(selected[0] == top_k(largest, budget, Order::by_score));
    }
  }
  CHECK(cuda::select_tokens(indices[0], 150, {}, true).empty());
}

TEST_CASE("device: selections of queries that see the first tokens of a document") {
  NEEDS_DEVICE();
  const uint64_t seed = 65;
  INFO("seed ", seed);
  Rng rng(seed);
  const ClusterIndex index = random_index(rng, 16, 5, 300, 30, 11);
  const cuda::DeviceClusterIndex of_device(index);
  const Matrix<float> queries = test::random_rows(rng, 3, 16);
  const size_t document = 310;
  std::vector<TokenChoice> each;
  for (const size_t tokens : {1, 4, 5, 6, 33, 150, 299, 300, 304, 310})
    for (const size_t newest : {0, 1, 8, 200, 400})
      for (const size_t budget : {0, 2, 6, 20, 130, 400})
        each.push_back({.queries = queries, .visible = tokens, .budget = budget, .newest = newest});
  const auto by_largest = cuda::select_tokens(of_device, document, each, true),
             by_sum = cuda::select_tokens(of_device, document, each, false);
  Matrix<float> scores(3, document);
  ClusterSelector(index, document).scores(queries, scores);
  for (size_t i = 0; i < each.size(); ++i) {
    const TokenChoice& query = each[i];
    const bool largest = i % 2 == 0;
    CAPTURE(query.visible);
    CAPTURE(query.newest);
    CAPTURE(query.budget);
    // By all tokens' scores: those that are always kept, and the best of the others.
    const uint64_t waiting = query.visible - std::min<uint64_t>(query.visible, 300);
    const KeptAnyway kept = kept_anyway(query.visible, 5, std::max(waiting, query.newest), query.budget);
    std::vector<Scored> expected, others;
    for (uint64_t t = 0; t < query.visible; ++t) {
      const Scored token{largest ? std::max({scores(0, t), scores(1, t), scores(2, t)})
                                 : scores(0, t) + scores(1, t) + scores(2, t),
                         static_cast<uint32_t>(t)};
      (t < kept.first || t >= query.visible - kept.newest ? expected : others).push_back(token);
    }
    rank(others);
    others.resize(std::min(others.size(), query.budget - expected.size()));
    expected.insert(expected.end(), others.begin(), others.end());
    rank(expected);
    if (!largest)
      for (Scored& token : expected) token.score /= 3;
    CHECK((largest ? by_largest : by_sum)[i] == expected);
  }
}

TEST_CASE("device: selections refuse what they cannot rank") {
  NEEDS_DEVICE();
  Rng rng(64);
  const ClusterIndex own = random_index(rng, 8, 0, 30, 5, 5);
  const cuda::DeviceClusterIndex index(own);
  Matrix<float> query = test::random_rows(rng, 2, 8);
  const Matrix<float> narrow = test::random_rows(rng, 1, 7);
  const auto select = [&](uint64_t tokens, MatrixView<const float> queries) {
    const TokenChoice each{.queries = queries, .visible = tokens, .budget = 10};
    (void)cuda::select_tokens(index, tokens, {&each, 1}, true);
  };
  CHECK_NOTHROW(select(30, query));
  CHECK_THROWS_AS(select(30, narrow), Error);
  CHECK_THROWS_AS(select(30, query.view().rows(0, 0)), Error);
  query(1, 3) = NAN;
  CHECK_THROWS_AS(select(30, query), Error);
}

}  // namespace cluster_test
