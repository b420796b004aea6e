// Mean and covariance of rows that are added piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lib/core/view.hpp"

namespace kvcodec {

/// Sums up the covariance of rows of `width` values, piece by piece. An origin, the mean of the first rows added, is subtracted from all
/// rows. Their products are summed over 256 rows in float, the results in double. Cutting rows into other pieces changes the result by
/// rounding only; the number of threads does not change it. Memory: 4 width^2 bytes.
class CovarianceSums {
 public:
  explicit CovarianceSums(size_t width) : width_(width), sums_(count_of_sums(width)) {}
  /// origin: from mean_of_first(). Sums of different rows can be added to each other if their origin is the
  /// same. sums: in the form of sums(); empty: of no rows. Throws Error(failed) for another number of them.
  CovarianceSums(std::vector<float> origin, std::vector<double> sums);
  /// The mean of the first 256 of these rows, or of all if there are fewer.
  static std::vector<float> mean_of_first(MatrixView<const float> rows);
  /// The number of sums().
  static size_t count_of_sums(size_t width) { return 1 + width + width * (width + 1) / 2; }
  /// rows: (n, width), finite. Throws Error(failed) for another width.
  void add(MatrixView<const float> rows);
  uint64_t rows() const { return static_cast<uint64_t>(sums_.front()); }
  /// The number of rows, their sum, and the upper triangle of the sums of products, one row behind the other.
  std::vector<double> sums() && { return std::move(sums_); }
  /// (width, width): the sums of products of centred rows, divided by the number of rows; zeros without any rows.
  Matrix<double> covariance() const;
  /// (width); zeros without any rows.
  std::vector<double> mean() const {
    std::vector<double> result(width_);
    const double n = sums_.front();
    if (n == 0) return result;
    for (size_t i = 0; i < width_; ++i) result[i] = static_cast<double>(origin_[i]) + sums_[1 + i] / n;
    return result;
  }

 private:
  /// The place of the products of a column with itself and those to its right.
  size_t triangle_row(size_t i) const { return 1 + width_ + i * (2 * width_ - i + 1) / 2; }

  size_t width_;
  std::vector<float> origin_;
  std::vector<double> sums_;
};

}  // namespace kvcodec
