#include "lib/linalg/nearest.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/kmeans/kmeans.hpp"
#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/kmeans/kmeans.hpp"
#include "test/cuda/device_case.hpp"

namespace nearest_test {

using namespace kvcodec;

namespace {

void same_as_lib(const Matrix<float>& rows, const Matrix<float>& entries, std::span<const float> bias) {
  std::vector<uint32_t> expected(rows.rows()), found(rows.rows(), 77);
  std::vector<float> expected_scores(rows.rows()), scores(rows.rows(), 77);
  ProductSearch(entries, bias).best(rows, expected, expected_scores);
  cuda::best_products(cuda::DeviceMatrix(rows), cuda::DeviceMatrix(entries), bias, found, scores);
  CHECK(found == expected);
  CHECK(scores == expected_scores);
}

}  // namespace

TEST_CASE("device: nearest entries are lib's") {
  NEEDS_DEVICE();
  const uint64_t seed = 21;
  INFO("seed ", seed);
  Rng rng(seed);
  struct Shape {
    size_t rows, entries, dims;
  };
  for (const auto [n, k, d] : {Shape{1, 1, 1}, Shape{5, 7, 3}, Shape{130, 129, 32}, Shape{40, 260, 100},
                               Shape{129, 16, 4}, Shape{20, 4300, 16}, Shape{5, 700, 300}}) {
    CAPTURE(n);
    CAPTURE(k);
    CAPTURE(d);
    const Matrix<float> rows = test::random_rows(rng, n, d), entries = test::random_rows(rng, k, d);
    same_as_lib(rows, entries, {});
    same_as_lib(rows, entries, nearest_bias(entries));
  }
}

TEST_CASE("device: entries that are nearly or quite equal, and rows of any size") {
  NEEDS_DEVICE();
  const uint64_t seed = 22;
  INFO("seed ", seed);
  Rng rng(seed);
  Matrix<float> rows = test::random_rows(rng, 150, 40), entries = test::random_rows(rng, 200, 40);
  for (size_t k = 1; k < 200; ++k)  // all are one entry, changed by less than f16 can tell, some not at all
    for (size_t j = 0; j < 40; ++j)
      entries(k, j) = entries(0, j) * (1 + (k % 3 == 0 ? 0.0f : static_cast<float>(rng.normal()) * 1e-6f));
  same_as_lib(rows, entries, {});
  same_as_lib(rows, entries, nearest_bias(entries));
  // Sizes from far below to far above f16's range, rows of zeros, and one large value among small ones.
  for (size_t i = 0; i < 150; ++i)
    for (float& value : rows.row(i)) value *= std::pow(10.0f, static_cast<float>(i % 30) - 15.0f);
  for (float& value : rows.row(3)) value = 0;
  rows(4, 5) = 1e12f;
  for (size_t k = 0; k < 200; ++k) entries(k, k % 40) *= std::pow(10.0f, static_cast<float>(k % 9) - 4.0f);
  same_as_lib(rows, entries, {});
  same_as_lib(rows, entries, nearest_bias(entries));
}

TEST_CASE("device: means of rows are lib's") {
  NEEDS_DEVICE();
  Rng rng(23);
  for (const size_t dims : {1, 70, 130}) {
    const Matrix<float> rows = test::random_rows(rng, 100, dims);
    std::vector<uint32_t> labels(100);
    for (auto& label : labels) label = static_cast<uint32_t>(rng.below(6));
    for (auto& label : labels) label += label == 2;  // nobody is in cluster 2
    const RowsByCluster sorted = sort_by_cluster(labels, 7);
    Matrix<float> expected(7, dims), found(7, dims);
    for (float& value : found.row(2)) value = 5;
    for (size_t c = 0; c < 7; ++c)
      mean_of(rows,
              std::span(sorted.rows).subspan(sorted.offsets[c], sorted.offsets[c + 1] - sorted.offsets[c]),
              expected.row(c));
    for (float& value : expected.row(2)) value = 5;
    cuda::RowsByCluster(labels, 7).means_of(cuda::DeviceMatrix(rows), found);
    CHECK(std::equal(found.data(), found.data() + found.size(), expected.data()));
  }
}

TEST_CASE("device: searches refuse what does not fit") {
  NEEDS_DEVICE();
  const Matrix<float> rows(3, 4), entries(2, 4), none(0, 4), narrow_entries(2, 3);
  std::vector<uint32_t> ids(3), few(2);
  std::vector<float> scores(3), bias(1);
  const auto search = [](const Matrix<float>& x, const Matrix<float>& of, std::span<const float> with,
                         std::span<uint32_t> into, std::span<float> at) {
    cuda::best_products(cuda::DeviceMatrix(x), cuda::DeviceMatrix(of), with, into, at);
  };
  CHECK_THROWS_AS(search(rows, none, {}, ids, scores), Error);
  CHECK_THROWS_AS(search(rows, narrow_entries, {}, ids, scores), Error);
  CHECK_THROWS_AS(search(rows, entries, bias, ids, scores), Error);
  CHECK_THROWS_AS(search(rows, entries, {}, few, scores), Error);
  search(none, entries, {}, {}, {});
  const Matrix<float> wide(1, (1 << 15) + 1);
  CHECK_THROWS_AS(cuda::DeviceMatrix{wide}, Error);
  CHECK(cuda::DeviceMatrix(wide.view().columns(0, 1 << 15)).cols() == 1 << 15);
  // Rows that nobody reads: their number is refused first.
  const float one = 1;
  CHECK_THROWS_AS(cuda::DeviceMatrix(MatrixView<const float>(&one, (size_t{1} << 31) + 1, 1)), Error);
}

}  // namespace nearest_test
