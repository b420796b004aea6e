#include "lib/linalg/eigen.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include <cblas.h>

#include "lib/core/error.hpp"
#include "lib/linalg/blas_thread.hpp"

// Fortran's compiler passes the lengths of its strings behind everything else.
extern "C" void dsyevd_(const char* job, const char* triangle, const blasint* n, double* a,
                        const blasint* stride, double* values, double* work, const blasint* work_size,
                        blasint* integers, const blasint* integers_size, blasint* info, size_t job_length,
                        size_t triangle_length);
extern "C" void dpotrf_(const char* triangle, const blasint* n, double* a, const blasint* stride,
                        blasint* info, size_t triangle_length);

namespace kvcodec {
namespace {

bool finite(const Matrix<double>& matrix) {
  return std::ranges::all_of(std::span(matrix.data(), matrix.size()),
                             [](double x) { return std::isfinite(x); });
}

/// job: 'N' for eigenvalues alone, 'V' for eigenvectors too, which replace the matrix: one a row, since LAPACK
/// stores columns.
std::vector<double> solve(char job, Matrix<double>& matrix) {
  const size_t n = matrix.rows();
  if (n != matrix.cols())
    throw failed("eigenvalues of a {} x {} matrix; it must be square", n, matrix.cols());
  if (n > static_cast<size_t>(std::numeric_limits<int>::max()) / 64)
    throw failed("eigenvalues of a matrix of {} rows; that is too large", n);
  if (!finite(matrix)) throw failed("a matrix of values that are not finite has no eigenvalues");
  std::vector<double> values(n);
  if (n == 0) return values;
  const OnThisThread on_this_thread;
  const char triangle = 'L';
  const auto size = static_cast<blasint>(n);
  blasint info = 0, asks = -1, integers_size = 0;
  double work_size = 0;
  dsyevd_(&job, &triangle, &size, matrix.data(), &size, values.data(), &work_size, &asks, &integers_size,
          &asks, &info, 1, 1);
  // The size of the scratch memory may come back beyond 31 bits; LAPACK then could not be told it.
  if (info != 0 || work_size > static_cast<double>(std::numeric_limits<blasint>::max()))
    throw failed("LAPACK refuses a matrix of {} rows", n);
  const auto works = static_cast<blasint>(work_size);
  std::vector<double> work(static_cast<size_t>(works));
  std::vector<blasint> integers(static_cast<size_t>(integers_size));
  dsyevd_(&job, &triangle, &size, matrix.data(), &size, values.data(), work.data(), &works, integers.data(),
          &integers_size, &info, 1, 1);
  if (info != 0) throw failed("LAPACK found no eigenvalues of a matrix of {} rows (info {})", n, info);
  return values;
}

}  // namespace

bool positive_definite(Matrix<double> matrix) {
  const size_t n = matrix.rows();
  if (n != matrix.cols() || n > static_cast<size_t>(std::numeric_limits<int>::max()) / 64)
    throw failed("factors of a {} x {} matrix", n, matrix.cols());
  if (!finite(matrix)) return false;
  if (n <= 1) return n == 0 || matrix(0, 0) > 0;
  const OnThisThread on_this_thread;
  const char triangle = 'L';
  const auto size = static_cast<blasint>(n);
  blasint info = 0;
  dpotrf_(&triangle, &size, matrix.data(), &size, &info, 1);
  if (info < 0) throw failed("LAPACK refuses a matrix of {} rows", n);
  return info == 0;
}

std::vector<double> symmetric_eigenvalues(Matrix<double> matrix) { return solve('N', matrix); }

Eigen symmetric_eigen(Matrix<double> matrix) {
  Eigen eigen;
  eigen.values = solve('V', matrix);
  eigen.vectors = std::move(matrix);
  return eigen;
}

Matrix<double> power_of(const Eigen& eigen, double power) {
  const size_t n = eigen.values.size();
  std::vector<double> values(n);
  for (size_t k = 0; k < n; ++k) values[k] = std::pow(eigen.values[k], power);
  Matrix<double> result(n, n);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (size_t k = 0; k < n; ++k) sum += values[k] * eigen.vectors(k, i) * eigen.vectors(k, j);
      result(i, j) = result(j, i) = sum;
    }
  return result;
}

}  // namespace kvcodec
