// kvcodec_bench_cluster: k-means of keys, and selection by clusters.
//
//   kvcodec_bench_cluster [--export FOLDER] [--kmeans-only]
//
// 32,768 keys of 128 dimensions into 400 clusters, 10 rounds, by cosine: keys around 600 centres of different
// weight with a few large channels, as models have them ("keys"), and normal ones ("normal"), on which no
// bound helps. --export writes them (float32, row by row), for peers_cluster.py, and measures nothing;
// --kmeans-only is the part that it compares.
#include <cmath>
#include <cstring>

#include "lib/attention/attention.hpp"
#include "lib/attention/selector.hpp"
#include "lib/core/rng.hpp"
#include "lib/kmeans/kmeans.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/linalg/topk.hpp"
#include "test/bench/bench.hpp"

using namespace kvcodec;

namespace {

constexpr size_t kTokens = 32768, kDims = 128, kClusters = 400, kRounds = 10;

Matrix<float> normal_keys() {
  Rng rng(1);
  Matrix<float> keys(kTokens, kDims);
  for (size_t i = 0; i < keys.size(); ++i) keys.data()[i] = static_cast<float>(rng.normal());
  return keys;
}

Matrix<float> model_keys() {
  Rng rng(2);
  const size_t centres = 600;
  Matrix<float> centre(centres, kDims), keys(kTokens, kDims);
  for (size_t i = 0; i < centre.size(); ++i) centre.data()[i] = static_cast<float>(rng.normal());
  for (size_t t = 0; t < kTokens; ++t) {
    const double u = rng.uniform();
    const auto c = static_cast<size_t>(u * u * double(centres));  // some are far more frequent than others
    for (size_t j = 0; j < kDims; ++j)
      keys(t, j) = centre(c, j) + static_cast<float>(rng.normal()) + (j % 40 == 7 ? 8.0f : 0.0f);
  }
  return keys;
}

struct Data {
  std::string name;
  Matrix<float> keys;
};

/// The clusters of one set of rows.
Clustering kmeans(MatrixView<const float> rows, size_t clusters, const KmeansOptions& options) {
  const KmeansTask task{.rows = rows, .clusters = clusters};
  return std::move(kvcodec::kmeans({&task, 1}, options).front());
}

void save(const std::string& folder, const Data& data) {
  std::ofstream file(folder + "/" + data.name + ".f32", std::ios::binary);
  file.write(reinterpret_cast<const char*>(data.keys.data()),
             static_cast<std::streamsize>(data.keys.size() * sizeof(float)));
  bench::check(file.good(), "cannot write " + folder + "/" + data.name + ".f32");
}

/// The mean cosine of keys and their centroids.
double mean_cosine(const Matrix<float>& keys, const Clustering& clustering) {
  double sum = 0;
  for (size_t t = 0; t < keys.rows(); ++t) {
    double product = 0, key = 0, centroid = 0;
    for (size_t j = 0; j < kDims; ++j) {
      const double a = keys(t, j), b = clustering.centroids(clustering.labels[t], j);
      product += a * b, key += a * a, centroid += b * b;
    }
    sum += product / std::sqrt(key * centroid);
  }
  return sum / double(keys.rows());
}

/// All products of one round, in blocks, and nothing else: a lower bound for computing them in floats.
void products(const Matrix<float>& keys, MatrixView<const float> centroids) {
  parallel_for(kTokens, 512, [&](size_t begin, size_t end, int) {
    thread_local Matrix<float> out(512, kClusters);
    gemm(1, keys.view().rows(begin, end - begin), transposed(centroids), 0, out.view().rows(0, end - begin));
  });
}

/// Another round assigns every key to the nearest of the previous centroids, by computing all products.
void check_round(const Matrix<float>& keys, KmeansOptions options) {
  const Clustering after = kmeans(keys, kClusters, options);
  options.rounds -= 1;
  const Clustering before = kmeans(keys, kClusters, options);
  if (before.centroids.rows() != after.centroids.rows()) return;  // clusters were renumbered
  for (size_t t = 0; t < keys.rows(); t += 16) {
    double best = -1e30, own = 0;
    for (size_t c = 0; c < before.centroids.rows(); ++c) {
      double product = 0, square = 0;
      for (size_t j = 0; j < kDims; ++j) {
        product += double{keys(t, j)} * before.centroids(c, j);
        square += double{before.centroids(c, j)} * before.centroids(c, j);
      }
      best = std::max(best, product / std::sqrt(square));
      if (c == after.labels[t]) own = product / std::sqrt(square);
    }
    bench::check(own > best - 1e-4 * std::abs(best), fmt::format("the cluster of key {}", t));
  }
}

void measure_kmeans(const Data& data, bool brief) {
  const KmeansOptions options{.rounds = kRounds, .seed = 1};
  const Clustering result = kmeans(data.keys, kClusters, options);
  check_round(data.keys, options);
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    const auto times = bench::measure(11, [&] { kmeans(data.keys, kClusters, options); });
    if (brief) {
      fmt::print("kmeans  {:7}  {} threads  {}  mean cosine {:.4f}\n", data.name, threads,
                 bench::milliseconds(times), mean_cosine(data.keys, result));
      continue;
    }
    const auto floor = bench::measure(3, [&] {
      for (size_t round = 0; round < kRounds; ++round)
        products(data.keys, data.keys.view().rows(0, kClusters));
    });
    limit_simd(SimdLevel::avx2);
    const auto avx2 = bench::measure(3, [&] { kmeans(data.keys, kClusters, options); });
    limit_simd(kWidestSimd);
    fmt::print(
        "kmeans  {:7}  {} threads  {}  AVX2, by floats {}  {} sgemm alone {}  mean cosine {:.4f}, {} "
        "clusters\n",
        data.name, threads, bench::milliseconds(times), bench::milliseconds(avx2), kRounds,
        bench::milliseconds(floor), mean_cosine(data.keys, result), result.centroids.rows());
  }
  set_num_threads(0);
}

/// 1,024 of all keys for one query: by clusters, and exactly.
void measure_selection(const Data& data) {
  constexpr size_t kBudget = 1024, kQueries = 16;
  ClusterOptions options;
  options.clusters = kClusters;
  ClusterIndex index(kDims, static_cast<uint64_t>(options.sink));
  const uint64_t end[] = {kTokens};
  const ClusterTask task{&index, data.keys, end, 0};
  add_batches({&task, 1}, options, 1);
  const ClusterSelector selector(index, kTokens);
  Rng rng(3);
  Matrix<float> queries(kQueries, kDims), scores(1, kTokens);
  for (size_t q = 0; q < kQueries; ++q) {  // near some key, as queries that look for something are
    const auto key = data.keys.view().row(static_cast<size_t>(rng.below(kTokens)));
    for (size_t j = 0; j < kDims; ++j) queries(q, j) = key[j] + static_cast<float>(rng.normal());
  }
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    size_t q = 0;
    bench::Times by_clusters, exactly;
    for (int repeat = 0; repeat < 51; ++repeat) {  // in turns; the products read 16 MB, which empties caches
      double start = bench::now();
      selector.scores(queries.view().rows(q, 1), scores);
      const auto selected = top_k(scores.row(0), kBudget);
      const double middle = bench::now();
      dot_products(queries.view().rows(q, 1), data.keys, scores);
      const auto best = top_k(scores.row(0), kBudget);
      if (repeat > 0) by_clusters.add(middle - start), exactly.add(bench::now() - middle);
      q = (q + 1) % kQueries;
    }
    fmt::print(
        "select  {:7}  {} threads  {} of {}: by clusters {:.1f} us ({:.1f} .. {:.1f}), q.K and top-k {:.1f} "
        "us ({:.1f} .. {:.1f}), {:.1f}x\n",
        data.name, threads, kBudget, kTokens, by_clusters.median() * 1e6, by_clusters.min() * 1e6,
        by_clusters.max() * 1e6, exactly.median() * 1e6, exactly.min() * 1e6, exactly.max() * 1e6,
        exactly.median() / by_clusters.median());
  }
  set_num_threads(0);
}

}  // namespace

int main(int argc, char** argv) {
  const Data sets[] = {{"keys", model_keys()}, {"normal", normal_keys()}};
  if (argc == 3 && std::strcmp(argv[1], "--export") == 0) {
    for (const Data& data : sets) save(argv[2], data);
    return 0;
  }
  const bool brief = argc == 2 && std::strcmp(argv[1], "--kmeans-only") == 0;
  bench::print_header("clusters");
  for (const Data& data : sets) measure_kmeans(data, brief);
  if (!brief)
    for (const Data& data : sets) measure_selection(data);
}
