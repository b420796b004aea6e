#include "lib/linalg/covariance.hpp"

#include <algorithm>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec {

constexpr size_t kRows = 256;
/// Rows of the matrix of products in one piece of parallel work.
constexpr size_t kStrip = 64;

CovarianceSums::CovarianceSums(std::vector<float> origin, std::vector<double> sums)
    : width_(origin.size()), origin_(std::move(origin)), sums_(std::move(sums)) {
  if (sums_.empty()) sums_.resize(count_of_sums(width_));
  if (sums_.size() != count_of_sums(width_))
    throw failed("{} sums of {} columns, not {}", sums_.size(), width_, count_of_sums(width_));
}

/// An origin near the mean: without it, squares of the mean would dominate the sums and cost them their precision.
std::vector<float> CovarianceSums::mean_of_first(MatrixView<const float> rows) {
  std::vector<float> origin(rows.cols());
  const size_t count = std::min(rows.rows(), kRows);
  for (size_t i = 0; i < count; ++i)
    for (size_t j = 0; j < origin.size(); ++j) origin[j] += rows(i, j) / static_cast<float>(count);
  return origin;
}

void CovarianceSums::add(MatrixView<const float> rows) {
  if (rows.cols() != width_) throw failed("rows of {} values, not {}", rows.cols(), width_);
  if (rows.rows() == 0) return;
  if (origin_.empty()) origin_ = mean_of_first(rows);
  double* const sums = &sums_[1];
  for (size_t first = 0; first < rows.rows(); first += kRows) {
    const size_t count = std::min(kRows, rows.rows() - first);
    Matrix<float> part(count, width_);
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < width_; ++j) {
        part(i, j) = rows(first + i, j) - origin_[j];
        sums[j] += static_cast<double>(part(i, j));
      }
    // The upper triangle, in strips that reach from the diagonal to the right.
    parallel_for(width_, kStrip, [&](size_t begin, size_t end, int) {
      Matrix<float> products(end - begin, width_ - begin);
      gemm(1, transposed(part.view().columns(begin, end - begin)), part.view().columns(begin, width_ - begin),
           0, products);
      for (size_t i = begin; i < end; ++i) {
        double* const to = &sums_[triangle_row(i)];
        for (size_t j = i; j < width_; ++j) to[j - i] += static_cast<double>(products(i - begin, j - begin));
      }
    });
  }
  sums_.front() += static_cast<double>(rows.rows());
}

Matrix<double> CovarianceSums::covariance() const {
  Matrix<double> result(width_, width_);
  const double n = sums_.front();
  if (n == 0) return result;
  const double* const sums = &sums_[1];
  for (size_t i = 0; i < width_; ++i) {
    const double* const products = &sums_[triangle_row(i)];
    for (size_t j = i; j < width_; ++j)
      result(i, j) = result(j, i) = products[j - i] / n - sums[i] / n * (sums[j] / n);
  }
  return result;
}

}  // namespace kvcodec
