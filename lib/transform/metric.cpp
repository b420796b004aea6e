#include "lib/transform/metric.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/linalg/eigen.hpp"

namespace kvcodec {
namespace {

constexpr size_t kRowGrain = 64;
/// Measured blocks: the least eigenvalue, of the largest one, and what is added everywhere, of the mean weight.
constexpr double kLeastEigenvalue = 1e-6, kFloor = 0.01;
/// Beyond that an inverse has no digit right: the least eigenvalue, of the largest one.
constexpr double kLeastOfLargest = 0x1p-40;
/// Traces of blocks of V: within these neither V nor W leaves the range of floats.
constexpr double kLeastTrace = 0x1p-80, kMostTrace = 0x1p80;

/// Calls body(i, block) for each block, on several threads. Throws Error(failed) for one that is not symmetric.
template <class Value, class Body>
void for_each_block(const Matrix<Value>& blocks, const Body& body) {
  const size_t b = blocks.cols();
  if (b == 0 || blocks.rows() % b != 0)
    throw failed("blocks of {} columns for vectors of {}", b, blocks.rows());
  // Thousands of numbers, a block each, are done sooner than a thread starts.
  constexpr size_t kWork = 4096;
  parallel_for(blocks.rows() / b, kWork / (b * b * b), [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      Matrix<double> block(b, b);
      std::copy_n(blocks.data() + i * block.size(), block.size(), block.data());
      for (size_t r = 0; r < b; ++r)
        for (size_t c = 0; c < r; ++c)
          if (block(r, c) != block(c, r)) throw failed("block {} is not symmetric", i);
      body(i, std::move(block));
    }
  });
}

/// Calls body(i, block) for each block, and puts what it gives into the block's place.
template <class Body>
void replace_each_block(Matrix<double>& blocks, const Body& body) {
  for_each_block(blocks, [&](size_t i, Matrix<double> block) {
    block = body(i, std::move(block));
    std::copy_n(block.data(), block.size(), blocks.data() + i * block.size());
  });
}

/// The power of each block: (width, b).
Matrix<float> powers_of(Matrix<double> blocks, double power) {
  replace_each_block(blocks, [&](size_t i, Matrix<double> block) {
    const Eigen eigen = symmetric_eigen(std::move(block));
    if (!(eigen.values.front() > kLeastOfLargest * eigen.values.back()))
      throw failed(
          "block {} has eigenvalues from {} to {}; they must be positive, the least above 2^-40 of the largest",
          i, eigen.values.front(), eigen.values.back());
    return power_of(eigen, power);
  });
  Matrix<float> result(blocks.rows(), blocks.cols());
  std::transform(blocks.data(), blocks.data() + blocks.size(), result.data(),
                 [](double value) { return static_cast<float>(value); });
  return result;
}

double trace_of(const Matrix<double>& block) {
  double sum = 0;
  for (size_t i = 0; i < block.rows(); ++i) sum += block(i, i);
  return sum;
}

Matrix<double> doubles_of(MatrixView<const float> values) {
  Matrix<double> result(values.rows(), values.cols());
  for (size_t i = 0; i < values.rows(); ++i) std::ranges::copy(values.row(i), result.row(i).begin());
  return result;
}

Matrix<double> column_of(std::span<const float> values) {
  return doubles_of(MatrixView<const float>(values.data(), values.size(), 1));
}

}  // namespace

ErrorMetric::ErrorMetric(std::span<const float> weights) : ErrorMetric(column_of(weights)) {}

ErrorMetric::ErrorMetric(Matrix<double> blocks)
    : ErrorMetric(from_inverse_roots(powers_of(std::move(blocks), -0.5))) {}

ErrorMetric ErrorMetric::from_inverse_roots(Matrix<float> inverse_roots) {
  ErrorMetric metric;
  try {
    for_each_block(inverse_roots, [](size_t i, Matrix<double> block) {
      const double trace = trace_of(block);
      if (!(trace >= kLeastTrace && trace <= kMostTrace))
        throw failed("block {} has a trace of {}; 2^-80 to 2^80 is possible", i, trace);
      // The trace is no less than the largest eigenvalue: W, which is computed only when it is needed, will be of use.
      for (size_t r = 0; r < block.rows(); ++r) block(r, r) -= kLeastOfLargest * trace;
      if (!positive_definite(std::move(block)))
        throw failed("block {} has an eigenvalue that is not above 2^-40 of its trace", i);
    });
  } catch (const Error& error) {  // what a file has is at fault
    throw bad_input("{}", error.what());
  }
  metric.inverse_roots_ = std::move(inverse_roots);
  return metric;
}

const Matrix<float>& ErrorMetric::roots() const {
  // The root is that of what is stored, which is rounded: one undoes the other.
  return roots_->get([&] { return powers_of(doubles_of(inverse_roots_), -1); });
}

Matrix<float> ErrorMetric::times_root(MatrixView<const float> rows, size_t first) const {
  if (first % block() != 0 || rows.cols() % block() != 0 || first + rows.cols() > width())
    throw failed("columns {} to {} of {} in blocks of {}", first, first + rows.cols(), width(), block());
  return product(rows, roots().view().rows(first, rows.cols()));
}

Matrix<float> ErrorMetric::product(MatrixView<const float> rows, MatrixView<const float> blocks) {
  Matrix<float> result(rows.rows(), rows.cols());
  times(rows, blocks, result);
  return result;
}

void ErrorMetric::times(MatrixView<const float> rows, MatrixView<const float> blocks, MatrixView<float> out) {
  const size_t b = blocks.cols();
  if (rows.cols() != blocks.rows() || out.rows() != rows.rows() || out.cols() != rows.cols())
    throw failed("rows ({}, {}) to ({}, {}), not of {} columns", rows.rows(), rows.cols(), out.rows(),
                 out.cols(), blocks.rows());
  parallel_for(rows.rows(), kRowGrain, [&](size_t begin, size_t end, int) {
    const auto some = rows.rows(begin, end - begin);
    const auto to = out.rows(begin, end - begin);
    if (b == 1) {
      for (size_t i = 0; i < some.rows(); ++i)
        for (size_t c = 0; c < some.cols(); ++c) to(i, c) = some(i, c) * blocks(c, 0);
      return;
    }
    for (size_t c = 0; c < some.cols(); c += b)
      gemm(1, some.columns(c, b), Transpose::no, blocks.rows(c, b), Transpose::no, 0, to.columns(c, b));
  });
}

Matrix<double> ErrorMetric::between_roots(const Matrix<double>& matrix) const {
  const size_t n = width(), b = block();
  const Matrix<float>& roots = this->roots();
  if (matrix.rows() != n || matrix.cols() != n)
    throw failed("a metric of {} columns for a matrix of {}", n, matrix.rows());
  // Twice its rows times W, turned over: W (matrix W)' = W matrix W.
  const auto turned_product = [&](const Matrix<double>& from) {
    Matrix<double> to(n, n);
    parallel_for(n, kRowGrain, [&](size_t begin, size_t end, int) {
      for (size_t i = begin; i < end; ++i)
        for (size_t c = 0; c < n; ++c) {
          const size_t first = c / b * b;
          double sum = 0;
          for (size_t k = 0; k < b; ++k) sum += from(i, first + k) * static_cast<double>(roots(c, k));
          to(c, i) = sum;
        }
    });
    return to;
  };
  Matrix<double> result = turned_product(turned_product(matrix));
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < i; ++j) result(i, j) = result(j, i) = (result(i, j) + result(j, i)) / 2;
  return result;
}

Matrix<double> tempered_blocks(Matrix<double> blocks, double power) {
  double total = 0;
  for (size_t i = 0; i < blocks.rows(); ++i) total += blocks(i, i % blocks.cols());
  if (!(total > 0)) throw failed("errors that cost {}", total);
  const double floor = kFloor * total / static_cast<double>(blocks.rows());
  replace_each_block(blocks, [&](size_t, Matrix<double> block) {
    const double trace = trace_of(block);
    Eigen eigen = symmetric_eigen(std::move(block));
    const double least = std::max(kLeastEigenvalue * eigen.values.back(), floor * kLeastEigenvalue);
    for (double& value : eigen.values) value = std::max(value, least);
    Matrix<double> raised = power_of(eigen, power);
    const double scale = std::max(trace, 0.0) / trace_of(raised);
    for (double& value : std::span(raised.data(), raised.size())) value *= scale;
    for (size_t i = 0; i < raised.rows(); ++i) raised(i, i) += floor;
    return raised;
  });
  return blocks;
}

}  // namespace kvcodec
