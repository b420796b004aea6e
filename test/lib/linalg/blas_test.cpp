#include "lib/linalg/blas.hpp"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "test/test.hpp"

namespace blas_test {

using namespace kvcodec;

namespace {

Matrix<float> random_matrix(size_t rows, size_t cols, Rng& rng) {
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < rows; ++i)
    for (float& value : matrix.row(i)) value = static_cast<float>(rng.normal());
  return matrix;
}

}  // namespace

TEST_CASE("matrix products agree with sums in double, for every transposition, size 0 and strides") {
  Rng rng(11);
  const size_t sizes[] = {0, 1, 2, 7, 16, 33};
  for (const size_t m : sizes)
    for (const size_t n : sizes)
      for (const size_t k : sizes)
        for (const bool ta : {false, true})
          for (const bool tb : {false, true})
            for (const float beta : {0.0f, 0.5f}) {
              const Matrix<float> a = random_matrix(ta ? k : m, (ta ? m : k) + 3, rng);
              const Matrix<float> b = random_matrix(tb ? n : k, (tb ? k : n) + 1, rng);
              Matrix<float> c = random_matrix(m, n + 2, rng);
              const Matrix<float> before = c;
              if (beta == 0.0f)  // must be overwritten unread
                for (size_t i = 0; i < m; ++i)
                  for (size_t j = 0; j < n; ++j) c(i, j) = std::nanf("");
              gemm(1.5f, {a.view().columns(0, ta ? m : k), ta ? Transpose::yes : Transpose::no},
                   {b.view().columns(0, tb ? k : n), tb ? Transpose::yes : Transpose::no}, beta,
                   c.view().columns(0, n));
              for (size_t i = 0; i < m; ++i) {
                for (size_t j = 0; j < n; ++j) {
                  double sum = 0, magnitude = 0;
                  for (size_t l = 0; l < k; ++l) {
                    const double term = double(ta ? a(l, i) : a(i, l)) * (tb ? b(j, l) : b(l, j));
                    sum += term, magnitude += std::abs(term);
                  }
                  const double want = 1.5 * sum + (beta == 0.0f ? 0.0 : double(beta) * before(i, j));
                  // k + 2 roundings of float, each at most half a unit of the sum of magnitudes.
                  const double allowed =
                      (double(k) + 2) * 0x1p-24 * (1.5 * magnitude + std::abs(want)) + 1e-30;
                  CHECK_LE(std::abs(c(i, j) - want), allowed);
                }
                CHECK_EQ(c(i, n), before(i, n));  // the padding stays
                CHECK_EQ(c(i, n + 1), before(i, n + 1));
              }
            }
}

TEST_CASE("matrix products of unfitting shapes are refused") {
  Matrix<float> a(3, 4), b(5, 6), c(3, 6), d(4, 6);
  CHECK_THROWS_AS(gemm(1, a, b, 0, c), Error);
  CHECK_THROWS_AS(gemm(1, a, transposed(d), 0, c), Error);
  CHECK_THROWS_AS(gemm(1, a, d, 0, b), Error);
  CHECK_NOTHROW(gemm(1, a, d, 0, c));
}

TEST_CASE("matrix products give the same bytes for any number of threads and leave that number alone") {
  Rng rng(12);
  const size_t n = 700;  // far above the size from which OpenBLAS would take threads
  const Matrix<float> a = random_matrix(n, n, rng), b = random_matrix(n, n, rng);
  const auto product = [&](int threads, size_t grain) {
    set_num_threads(threads);
    Matrix<float> c(n, n);
    parallel_for(1, 1, [&](size_t, size_t, int) {
      const int before = num_threads();
      gemm(1, a, b, 0, c);
      CHECK_EQ(num_threads(), before);
    });
    if (grain > 0)
      parallel_for(n, grain, [&](size_t begin, size_t end, int) {
        gemm(1, a.view().rows(begin, end - begin), b, 0, c.view().rows(begin, end - begin));
      });
    set_num_threads(0);
    return c;
  };
  for (const size_t grain : {size_t{0}, size_t{96}}) {
    const Matrix<float> one = product(1, grain), two = product(2, grain), many = product(5, grain);
    CHECK_EQ(std::memcmp(one.data(), two.data(), n * n * sizeof(float)), 0);
    CHECK_EQ(std::memcmp(one.data(), many.data(), n * n * sizeof(float)), 0);
  }
}

TEST_CASE("gemv: op(A) x + beta y in double, strides and empty sides included") {
  Rng rng(7);
  for (const size_t m : {0, 1, 3, 64, 130})
    for (const size_t n : {0, 1, 5, 128})
      for (const Transpose transpose : {Transpose::no, Transpose::yes})
        for (const float beta : {0.0f, 1.0f}) {
          CAPTURE(m);
          CAPTURE(n);
          Matrix<float> wide(m, n + 3);
          for (size_t i = 0; i < wide.size(); ++i) wide.data()[i] = static_cast<float>(rng.normal());
          const auto a = wide.view().columns(2, n);
          const bool ta = transpose == Transpose::yes;
          std::vector<float> x(ta ? m : n), y(ta ? n : m);
          for (float& value : x) value = static_cast<float>(rng.normal());
          for (float& value : y) value = beta == 0 ? NAN : static_cast<float>(rng.normal());
          const std::vector<float> before = y;
          gemv({a, transpose}, x, beta, y);
          for (size_t i = 0; i < y.size(); ++i) {
            double sum = beta == 0 ? 0 : double(beta) * before[i];
            for (size_t j = 0; j < x.size(); ++j) sum += double(ta ? a(j, i) : a(i, j)) * x[j];
            CHECK(y[i] == doctest::Approx(sum).epsilon(1e-4));
          }
        }
}

TEST_CASE("kernels without AVX are replaced where the machine has it, and no others") {
  const auto better = [](const char* chosen, SimdLevel machine) {
    const char* kernels = better_blas_kernels(chosen, machine);
    return std::string(kernels ? kernels : "");
  };
  CHECK(better("Prescott", SimdLevel::avx512_vnni) == "SkylakeX");
  CHECK(better("Prescott", SimdLevel::avx512) == "SkylakeX");
  CHECK(better("Prescott", SimdLevel::avx2) == "Haswell");
  CHECK(better("Nehalem", SimdLevel::avx2) == "Haswell");
  CHECK(better("Barcelona", SimdLevel::avx2) == "Haswell");
  CHECK(better("Prescott", SimdLevel::scalar).empty());
  for (const char* good :
       {"Haswell", "Zen", "SkylakeX", "Cooperlake", "Sapphirerapids", "Sandybridge", "armv8"})
    CHECK(better(good, SimdLevel::avx512).empty());
}

}  // namespace blas_test
