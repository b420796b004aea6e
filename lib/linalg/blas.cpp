#include "lib/linalg/blas.hpp"

#include <algorithm>
#include <limits>

#include <cblas.h>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

blasint as_blas(size_t size) {
  if (size > static_cast<size_t>(std::numeric_limits<int>::max()))
    throw failed("a matrix side of {} is beyond BLAS (31 bits)", size);
  return static_cast<blasint>(size);
}

/// Names of OpenBLAS's kernels that use no AVX.
constexpr std::string_view kWithoutAvx[] = {
    "Katmai",     "Coppermine", "Northwood", "Prescott", "Banias",       "Atom",      "Core2",  "Penryn",
    "Dunnington", "Nehalem",    "Athlon",    "Opteron",  "Opteron_SSE3", "Barcelona", "Bobcat", "Nano"};

/// BLAS wants strides of at least 1 even where nothing is read.
blasint stride_of(MatrixView<const float> matrix) { return as_blas(std::max<size_t>(matrix.stride(), 1)); }

}  // namespace

void gemm(float alpha, MatrixView<const float> a, Transpose transpose_a, MatrixView<const float> b,
          Transpose transpose_b, float beta, MatrixView<float> c) {
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  const size_t m = ta ? a.cols() : a.rows(), k = ta ? a.rows() : a.cols();
  const size_t n = tb ? b.rows() : b.cols(), k_of_b = tb ? b.cols() : b.rows();
  if (k != k_of_b || m != c.rows() || n != c.cols())
    throw failed("matrix product of ({}, {}) and ({}, {}) into ({}, {}): shapes do not fit", m, k, k_of_b, n,
                 c.rows(), c.cols());
  if (m == 0 || n == 0) return;
  const OnThisThread on_this_thread;
  cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, as_blas(m),
              as_blas(n), as_blas(k), alpha, a.data(), stride_of(a), b.data(), stride_of(b), beta, c.data(),
              stride_of(c));
}

void gemv(MatrixView<const float> a, Transpose transpose_a, std::span<const float> x, float beta,
          std::span<float> y) {
  const bool ta = transpose_a == Transpose::yes;
  if (x.size() != (ta ? a.rows() : a.cols()) || y.size() != (ta ? a.cols() : a.rows()))
    throw failed("product of a matrix ({}, {}){} and a vector of {} into one of {}: shapes do not fit",
                 a.rows(), a.cols(), ta ? ", transposed," : "", x.size(), y.size());
  if (y.empty()) return;
  if (x.empty()) {
    std::transform(y.begin(), y.end(), y.begin(), [&](float value) { return beta == 0 ? 0 : beta * value; });
    return;
  }
  const OnThisThread on_this_thread;
  cblas_sgemv(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, as_blas(a.rows()), as_blas(a.cols()), 1,
              a.data(), stride_of(a), x.data(), 1, beta, y.data(), 1);
}

const char* better_blas_kernels(std::string_view chosen, SimdLevel machine) {
  if (machine < SimdLevel::avx2 || std::ranges::find(kWithoutAvx, chosen) == std::end(kWithoutAvx))
    return nullptr;
  return machine < SimdLevel::avx512 ? "Haswell" : "SkylakeX";
}

const char* better_blas_kernels() { return better_blas_kernels(openblas_get_corename(), machine_simd()); }

}  // namespace kvcodec
