// Mean and covariance of rows that come piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/core/view.hpp"

namespace kvcodec {

/// Sums up the covariance of rows of `width` values, piece by piece. Products are floats over 256 rows at a
/// time, on which the rows' first mean is taken off, sums are doubles: any pieces give the same to rounding,
/// any number of threads the same. Memory: 8 bytes per pair of columns.
class CovarianceSums {
 public:
  explicit CovarianceSums(size_t width);
  /// (n, width), finite.
  void add(MatrixView<const float> rows);
  uint64_t rows() const { return rows_; }
  /// (width, width), by the number of rows; zeros without any.
  Matrix<double> covariance() const;
  /// (width); zeros without any rows.
  std::vector<double> mean() const;

 private:
  size_t width_;
  uint64_t rows_ = 0;
  std::vector<float> origin_;
  std::vector<double> sums_;
  Matrix<double> products_;  // the upper triangle
};

}  // namespace kvcodec
