// Mean and covariance of rows that come piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lib/core/view.hpp"

namespace kvcodec {

/// Sums up the covariance of rows of `width` values, piece by piece. Products are floats over 256 rows at a
/// time, on which the rows' first mean is taken off, sums are doubles: any pieces give the same to rounding,
/// any number of threads the same. Memory: 4 bytes per pair of columns.
class CovarianceSums {
 public:
  explicit CovarianceSums(size_t width);
  /// With an origin that is taken off in place of the first mean, as mean_of_first() gives it: so sums of other rows from
  /// the same origin can be added to these. sums: as sums() has them; empty: of no rows.
  CovarianceSums(std::vector<float> origin, std::vector<double> sums);
  static std::vector<float> mean_of_first(MatrixView<const float> rows);
  static size_t count_of_sums(size_t width) { return 1 + width + width * (width + 1) / 2; }
  /// (n, width), finite.
  void add(MatrixView<const float> rows);
  uint64_t rows() const { return static_cast<uint64_t>(sums_.front()); }
  /// How many rows, their sum, and the upper triangle of the sums of products, one row behind the other.
  std::vector<double> sums() && { return std::move(sums_); }
  /// (width, width), by the number of rows; zeros without any.
  Matrix<double> covariance() const;
  /// (width); zeros without any rows.
  std::vector<double> mean() const;

 private:
  /// Where the products of a column with itself and those to its right begin.
  size_t triangle_row(size_t i) const { return 1 + width_ + i * (2 * width_ - i + 1) / 2; }

  size_t width_;
  std::vector<float> origin_;
  std::vector<double> sums_;
};

}  // namespace kvcodec
