#include "lib/linalg/covariance.hpp"

#include <algorithm>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec {
namespace {

constexpr size_t kRows = 256;
/// Rows of the matrix of products in one piece of parallel work.
constexpr size_t kStrip = 64;

}  // namespace

CovarianceSums::CovarianceSums(size_t width) : width_(width), sums_(width), products_(width, width) {}

void CovarianceSums::add(MatrixView<const float> rows) {
  if (rows.cols() != width_) throw failed("rows of {} values, not {}", rows.cols(), width_);
  if (rows.rows() == 0) return;
  if (rows_ == 0) {
    // Near the mean: squares of what is left are sums' leading part no more.
    const size_t count = std::min(rows.rows(), kRows);
    origin_.assign(width_, 0);
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < width_; ++j) origin_[j] += rows(i, j) / static_cast<float>(count);
  }
  for (size_t first = 0; first < rows.rows(); first += kRows) {
    const size_t count = std::min(kRows, rows.rows() - first);
    Matrix<float> part(count, width_);
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < width_; ++j) {
        part(i, j) = rows(first + i, j) - origin_[j];
        sums_[j] += static_cast<double>(part(i, j));
      }
    // The upper triangle, in strips that reach from the diagonal to the right.
    parallel_for(width_, kStrip, [&](size_t begin, size_t end, int) {
      Matrix<float> products(end - begin, width_ - begin);
      gemm(1, part.view().columns(begin, end - begin), Transpose::yes,
           part.view().columns(begin, width_ - begin), Transpose::no, 0, products);
      for (size_t i = begin; i < end; ++i)
        for (size_t j = i; j < width_; ++j)
          products_(i, j) += static_cast<double>(products(i - begin, j - begin));
    });
  }
  rows_ += rows.rows();
}

Matrix<double> CovarianceSums::covariance() const {
  Matrix<double> result(width_, width_);
  if (rows_ == 0) return result;
  const double n = static_cast<double>(rows_);
  for (size_t i = 0; i < width_; ++i)
    for (size_t j = i; j < width_; ++j)
      result(i, j) = result(j, i) = products_(i, j) / n - sums_[i] / n * (sums_[j] / n);
  return result;
}

std::vector<double> CovarianceSums::mean() const {
  std::vector<double> result(width_);
  if (rows_ == 0) return result;
  for (size_t i = 0; i < width_; ++i)
    result[i] = static_cast<double>(origin_[i]) + sums_[i] / static_cast<double>(rows_);
  return result;
}

}  // namespace kvcodec
