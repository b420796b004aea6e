#include "lib/linalg/blas.hpp"

#include <algorithm>
#include <limits>

#include <cblas.h>

#include "lib/core/error.hpp"

namespace kvcodec {

static blasint as_blas(size_t size) {
  if (size > static_cast<size_t>(std::numeric_limits<int>::max()))
    throw failed("a matrix side of {} is beyond BLAS (31 bits)", size);
  return static_cast<blasint>(size);
}

/// Names of OpenBLAS's kernels that use no AVX.
constexpr std::string_view kWithoutAvx[] = {
    "Katmai",     "Coppermine", "Northwood", "Prescott", "Banias",       "Atom",      "Core2",  "Penryn",
    "Dunnington", "Nehalem",    "Athlon",    "Opteron",  "Opteron_SSE3", "Barcelona", "Bobcat", "Nano"};

static CBLAS_TRANSPOSE transpose_of(const Factor& factor) {
  return factor.turned() ? CblasTrans : CblasNoTrans;
}

/// BLAS wants strides of at least 1 even where nothing is read.
static blasint stride_of(MatrixView<const float> matrix) {
  return as_blas(std::max<size_t>(matrix.stride(), 1));
}

void gemm(float alpha, const Factor& a, const Factor& b, float beta, MatrixView<float> c) {
  const size_t m = c.rows(), n = c.cols(), k = a.cols();
  if (a.rows() != m || b.rows() != k || b.cols() != n)
    throw failed("matrix product of ({}, {}) and ({}, {}) into ({}, {}): shapes do not fit", a.rows(), k,
                 b.rows(), b.cols(), m, n);
  if (m == 0 || n == 0) return;
  const OnThisThread on_this_thread;
  cblas_sgemm(CblasRowMajor, transpose_of(a), transpose_of(b), as_blas(m), as_blas(n), as_blas(k), alpha,
              a.matrix.data(), stride_of(a.matrix), b.matrix.data(), stride_of(b.matrix), beta, c.data(),
              stride_of(c));
}

void gemv(const Factor& a, std::span<const float> x, float beta, std::span<float> y) {
  if (x.size() != a.cols() || y.size() != a.rows())
    throw failed("product of a matrix ({}, {}){} and a vector of {} into one of {}: shapes do not fit",
                 a.matrix.rows(), a.matrix.cols(), a.turned() ? ", transposed," : "", x.size(), y.size());
  if (y.empty()) return;
  if (x.empty()) {
    std::transform(y.begin(), y.end(), y.begin(), [&](float value) { return beta == 0 ? 0 : beta * value; });
    return;
  }
  const OnThisThread on_this_thread;
  const MatrixView<const float> matrix = a.matrix;
  cblas_sgemv(CblasRowMajor, transpose_of(a), as_blas(matrix.rows()), as_blas(matrix.cols()), 1,
              matrix.data(), stride_of(matrix), x.data(), 1, beta, y.data(), 1);
}

const char* better_blas_kernels(std::string_view chosen, SimdLevel machine) {
  if (machine < SimdLevel::avx2 || std::ranges::find(kWithoutAvx, chosen) == std::end(kWithoutAvx))
    return nullptr;
  return machine < SimdLevel::avx512 ? "Haswell" : "SkylakeX";
}

const char* better_blas_kernels() { return better_blas_kernels(openblas_get_corename(), machine_simd()); }

}  // namespace kvcodec
