// Nearest entries: k-means' assignment of keys, and a large codebook; means of clusters.
#include "cuda/kmeans/kmeans.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/rng.hpp"
#include "lib/kmeans/kmeans.hpp"
#include "lib/linalg/nearest.hpp"
#include "test/bench/cuda/device_bench.hpp"

namespace kvcodec::bench {
namespace {

/// The content of a DeviceMatrix, with its parts to be launched one by one.
struct Rows {
  cuda::DeviceBuffer<float> exact, factors, norms, errors;
  cuda::DeviceBuffer<uint16_t> rough;
  cuda::RoughRows rows;

  Rows(const std::vector<float>& values, size_t d, const cuda::Stream& stream)
      : exact(values, stream),
        factors(values.size() / d),
        norms(factors.size()),
        errors(factors.size()),
        rough(factors.size() * round_up(d, cuda::kRoughStep)) {
    rows = {exact.data(),
            rough.data(),
            factors.data(),
            norms.data(),
            errors.data(),
            static_cast<uint32_t>(factors.size()),
            static_cast<uint32_t>(d),
            static_cast<uint32_t>(round_up(d, cuda::kRoughStep))};
    stream.run("rounding rows", cuda::run_make_rough, rows);
    stream.synchronize();
  }
};

void search_case(DeviceBench& bench, const std::string& name, size_t n, size_t k, size_t d) {
  if (!bench.wanted(name)) return;
  const std::vector<float> values = random_floats(1, n * d), of_entries = random_floats(2, k * d);
  const size_t checked = std::min<size_t>(n, 2000);
  const MatrixView<const float> sample(values.data(), checked, d), entries(of_entries.data(), k, d);
  const std::vector<float> bias = nearest_bias(entries);
  std::vector<uint32_t> expected(checked), found(checked);
  std::vector<float> expected_scores(checked), found_scores(checked);
  ProductSearch(entries, bias).best(sample, expected, expected_scores);
  cuda::best_products(cuda::DeviceMatrix(sample), cuda::DeviceMatrix(entries), bias, found, found_scores);
  verify(found == expected && found_scores == expected_scores, "nearest entries");

  const Rows rows(values, d, bench.stream()), all(of_entries, d, bench.stream());
  const cuda::DeviceBuffer<float> device_bias(bias, bench.stream());
  cuda::DeviceBuffer<float> largest(3), scores(n);
  cuda::DeviceBuffer<uint32_t> ids(n);
  cuda::DeviceBuffer<cuda::Peak> peaks(n * ((k + cuda::kPeakTile - 1) / cuda::kPeakTile));
  largest.fill(0, bench.stream());
  const cuda::EntrySearch search{.rows = rows.rows,
                                 .entries = all.rows,
                                 .bias = device_bias.data(),
                                 .largest = largest.data(),
                                 .peaks = peaks.data(),
                                 .ids = ids.data(),
                                 .scores = scores.data()};
  bench.stream().run("norms", cuda::run_largest, search);
  const auto run_peaks = [&](size_t) { bench.stream().run("rough products", cuda::run_peaks, search); };
  const std::string shape = fmt::format("{} x {} entries x {}", n, k, d);
  const double operations = 2.0 * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(d);
  bench.measure(name + " rough", shape, {.operations = operations, .unit = "TFLOP/s"}, 1, run_peaks);
  // The work of settling depends on the data: it is credited with the search that it completes.
  bench.measure(name + " whole", shape, {.operations = operations, .unit = "TFLOP/s"}, 1, [&](size_t set) {
    run_peaks(set);
    bench.stream().run("settling", cuda::run_settle, search);
  });
}

void means_case(DeviceBench& bench) {
  if (!bench.wanted("nearest/means")) return;
  const size_t n = bench.small() ? 300 : size_t{1} << 19, k = bench.small() ? 7 : 6400, d = 128;
  const std::vector<float> values = random_floats(3, n * d);
  std::vector<uint32_t> labels(n);
  Rng rng(4);
  for (auto& label : labels) label = static_cast<uint32_t>(rng.below(k));
  const RowsByCluster sorted = sort_by_cluster(labels, k);
  const MatrixView<const float> rows(values.data(), n, d);
  Matrix<float> found(k, d), expected(k, d);
  cuda::RowsByCluster(labels, k).means_of(cuda::DeviceMatrix(rows), found);
  for (size_t c = 0; c < k; ++c)
    mean_of(rows,
            std::span(sorted.rows).subspan(sorted.offsets[c], sorted.offsets[c + 1] - sorted.offsets[c]),
            expected.row(c));
  verify(std::equal(found.data(), found.data() + found.size(), expected.data()), "means");
  const cuda::DeviceBuffer<float> device_rows(values, bench.stream());
  const cuda::DeviceBuffer<uint64_t> offsets(sorted.offsets, bench.stream());
  const cuda::DeviceBuffer<uint32_t> ids(sorted.rows, bench.stream());
  cuda::DeviceBuffer<float> means(k * d);
  bench.measure("nearest/means", fmt::format("{} rows x {} in {}", n, d, k),
                {.bytes = static_cast<double>(n) * (4.0 * static_cast<double>(d) + 4)}, 1, [&](size_t) {
                  const cuda::ClusteredRows all{device_rows.data(), static_cast<uint32_t>(d),
                                                static_cast<uint32_t>(k), offsets.data(), ids.data()};
                  bench.stream().run("means", cuda::run_cluster_means, all, means.data());
                });
}

}  // namespace

void nearest_cases(DeviceBench& bench) {
  const bool small = bench.small();
  const auto attempt = [&](const std::string& name, size_t n, size_t k, size_t d) {
    bench.attempt(name, [&] { search_case(bench, name, n, k, d); });
  };
  attempt("nearest/k-means", small ? 150 : 262144, small ? 30 : 400, small ? 40 : 128);
  attempt("nearest/codebook", small ? 100 : 65536, small ? 200 : 65536, small ? 32 : 128);
  bench.attempt("nearest/means", [&] { means_case(bench); });
}

}  // namespace kvcodec::bench
