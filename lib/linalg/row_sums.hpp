// Sums of a matrix's rows, by coefficients of which many may be zero: a matrix product with defined bits.
//
//   out(i, c) = start(c) + coefficients(0, i) * rows(0, c) + coefficients(1, i) * rows(1, c) + …
//
// Added in that order, each product fused with the sum (rounded once), at every level of lib/core/cpu.hpp and on every
// processor. So a sum's bits depend on its own coefficients alone, not on the other sums of a call, as they may with
// BLAS. Coefficients of zero are left out, since they change nothing: the work grows with the number of the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// The coefficients of some sums, without their zeros.
class RowCoefficients {
 public:
  RowCoefficients(size_t rows, size_t sums);
  size_t rows() const { return rows_; }
  size_t sums() const { return sums_; }

  /// Coefficients of the next row, one for each sum, finite. Rows behind the last one appended count as zeros.
  void append_row(std::span<const float> values);

 private:
  friend class RowSums;
  size_t blocks() const;

  size_t rows_ = 0, sums_ = 0, appended_ = 0;
  // For each sum, blocks of rows have room for as many pairs as a block has rows, and the number of pairs.
  AlignedVector<float> values_;
  AlignedVector<uint8_t> rows_of_;
  std::vector<uint8_t> counts_;
};

/// A matrix laid out for such sums.
class RowSums {
 public:
  RowSums() = default;
  /// rows: (n, width), finite.
  explicit RowSums(MatrixView<const float> rows) : RowSums(rows.rows(), rows.cols()) { set(0, rows); }
  /// Rows of zeros, for set().
  RowSums(size_t rows, size_t width);

  /// rows: (n, width), finite; they become rows [first, first + n). Threads may set different rows at once.
  void set(size_t first, MatrixView<const float> rows);

  size_t rows() const { return rows_; }
  size_t width() const { return width_; }

  /// start: (width); out: (coefficients.sums(), width). Reading the matrix pays from some hundred sums at a time on.
  /// Runs on the calling thread. Throws Error(failed) for shapes that do not fit.
  void add(const RowCoefficients& coefficients, std::span<const float> start, MatrixView<float> out) const;

 private:
  size_t rows_ = 0, width_ = 0;
  AlignedVector<float> panels_;  // of each panel of columns, of each block of rows: (block, panel)
};

}  // namespace kvcodec
