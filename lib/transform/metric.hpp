// What errors of a vector cost: e' M e for an error e. M is symmetric, positive definite and block-diagonal: of a
// vector's columns each b consecutive ones, those of a head, make one block, and errors in columns of different
// blocks do not work together. b = 1: every column has a weight of its own.
//
// What is needed of M are its root W = M^(1/2) and the inverse V = W^-1; V is what decoding needs, and is given.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lib/core/lazy.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

class ErrorMetric {
 public:
  ErrorMetric() = default;
  /// M = diag(weights). Throws Error(failed) for weights that are not positive and finite.
  explicit ErrorMetric(std::span<const float> weights);
  /// M from its blocks, one below the other: (width, b), each symmetric. Throws Error(failed) for blocks that are not
  /// symmetric and positive definite, and for a width that is not a multiple of b.
  explicit ErrorMetric(Matrix<double> blocks);
  /// From V, likewise (width, b), as a book has it. Throws Error(bad_input) for blocks that are not symmetric, with an
  /// eigenvalue that is not above 2^-40 of the block's trace, or with a trace outside of 2^-80 to 2^80.
  static ErrorMetric from_inverse_roots(Matrix<float> inverse_roots);

  size_t width() const { return inverse_roots_.rows(); }
  size_t block() const { return inverse_roots_.cols(); }
  /// W and V, (width, b). W is computed when it is first asked for, since only encoding and training need it.
  const Matrix<float>& roots() const;
  const Matrix<float>& inverse_roots() const { return inverse_roots_; }

  /// rows times the blocks of W or V, which `blocks` is: out (n, width).
  static void times(MatrixView<const float> rows, MatrixView<const float> blocks, MatrixView<float> out);
  /// rows W and rows V: (n, width) each.
  Matrix<float> times_root(MatrixView<const float> rows) const { return product(rows, roots()); }
  Matrix<float> times_inverse_root(MatrixView<const float> rows) const {
    return product(rows, inverse_roots_);
  }
  /// `rows W` for vectors that are 0 outside of the columns [first, first + rows.cols()), which are whole
  /// blocks. rows has these columns only, and so has the result: (n, rows.cols()).
  Matrix<float> times_root(MatrixView<const float> rows, size_t first) const;
  /// W matrix W, for a symmetric matrix.
  Matrix<double> between_roots(const Matrix<double>& matrix) const;

 private:
  static Matrix<float> product(MatrixView<const float> rows, MatrixView<const float> blocks);

  Matrix<float> inverse_roots_;  // (width, b)
  // Copies share it.
  std::shared_ptr<const Lazy<Matrix<float>>> roots_ = std::make_shared<Lazy<Matrix<float>>>();
};

/// Regularizes measured blocks for a metric, (width, b), symmetric: from few samples they are unreliable.
/// Each block is raised to `power` and scaled so that its trace stays (power 1: as it was; 0: the trace
/// spread evenly over the diagonal). Then a hundredth of the mean weight is added to the diagonal: errors in
/// directions that no sample had cost something too. Throws Error(failed) if all blocks are zeros.
Matrix<double> tempered_blocks(Matrix<double> blocks, double power);

}  // namespace kvcodec
