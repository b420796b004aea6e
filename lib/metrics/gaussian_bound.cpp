#include "lib/metrics/gaussian_bound.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec {
namespace {

constexpr size_t kRows = 256;
/// Rows of the matrix of products in one piece of parallel work.
constexpr size_t kStrip = 64;
constexpr int kBisections = 60;  // of an interval as wide as the largest eigenvalue: 2^-59 of it is left

/// Reduces to three diagonals: `diagonal` and, behind its first element, `beside`.
void to_three_diagonals(Matrix<double>& a, std::vector<double>& diagonal, std::vector<double>& beside) {
  const size_t n = a.rows();
  diagonal.resize(n);
  beside.assign(n, 0);
  std::vector<double> v(n), p(n);
  for (size_t k = 0; k + 1 < n; ++k) {
    double norm = 0;
    for (size_t i = k + 1; i < n; ++i) norm += a(i, k) * a(i, k);
    norm = std::sqrt(norm);
    beside[k + 1] = norm;
    const double first = a(k + 1, k);
    if (norm > 0) {
      // v = x + sign(x1) |x| e1; a becomes (1 - beta v v') a (1 - beta v v') in its lower right part.
      const double pivot = first >= 0 ? norm : -norm;
      beside[k + 1] = -pivot;
      for (size_t i = k + 1; i < n; ++i) v[i] = a(i, k);
      v[k + 1] += pivot;
      double length = 0;
      for (size_t i = k + 1; i < n; ++i) length += v[i] * v[i];
      const double beta = 2 / length;
      double product = 0;
      for (size_t i = k + 1; i < n; ++i) {
        double sum = 0;
        for (size_t j = k + 1; j < n; ++j) sum += a(i, j) * v[j];
        p[i] = beta * sum;
        product += p[i] * v[i];
      }
      for (size_t i = k + 1; i < n; ++i) p[i] -= beta / 2 * product * v[i];
      for (size_t i = k + 1; i < n; ++i)
        for (size_t j = k + 1; j < n; ++j) a(i, j) -= v[i] * p[j] + p[i] * v[j];
    }
  }
  for (size_t i = 0; i < n; ++i) diagonal[i] = a(i, i);
}

/// How many eigenvalues of three diagonals are below x: the negative pivots of its elimination (Sturm).
size_t eigenvalues_below(const std::vector<double>& diagonal, const std::vector<double>& beside, double x) {
  constexpr double kLeast = 0x1p-1000;  // instead of a pivot of 0, which stands on either side
  size_t below = 0;
  double pivot = 1;
  for (size_t i = 0; i < diagonal.size(); ++i) {
    pivot = diagonal[i] - x - beside[i] * beside[i] / pivot;
    if (std::abs(pivot) < kLeast) pivot = -kLeast;
    below += pivot < 0;
  }
  return below;
}

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
    parallel_for(width_, kStrip, [&](size_t begin, size_t end, int) {
      Matrix<float> products(end - begin, width_);
      gemm(1, part.view().columns(begin, end - begin), Transpose::yes, part, Transpose::no, 0, products);
      for (size_t i = begin; i < end; ++i)
        for (size_t j = 0; j < width_; ++j) products_(i, j) += static_cast<double>(products(i - begin, j));
    });
  }
  rows_ += rows.rows();
}

Matrix<double> CovarianceSums::covariance() const {
  Matrix<double> result(width_, width_);
  if (rows_ == 0) return result;
  const double n = static_cast<double>(rows_);
  for (size_t i = 0; i < width_; ++i)
    for (size_t j = 0; j < width_; ++j)
      result(i, j) = (products_(i, j) + products_(j, i)) / (2 * n) - sums_[i] / n * (sums_[j] / n);
  return result;
}

std::vector<double> symmetric_eigenvalues(Matrix<double> matrix) {
  if (matrix.rows() != matrix.cols())
    throw failed("eigenvalues of a {} x {} matrix; it must be square", matrix.rows(), matrix.cols());
  std::vector<double> diagonal, beside;
  to_three_diagonals(matrix, diagonal, beside);
  double reach = 0;  // no eigenvalue lies farther from 0 (Gershgorin)
  for (size_t i = 0; i < diagonal.size(); ++i) {
    const double next = i + 1 < diagonal.size() ? std::abs(beside[i + 1]) : 0;
    reach = std::max(reach, std::abs(diagonal[i]) + std::abs(beside[i]) + next);
    if (!std::isfinite(diagonal[i]) || !std::isfinite(beside[i]))
      throw failed("a matrix of values that are not finite has no eigenvalues");
  }
  std::vector<double> values(diagonal.size());
  parallel_for(values.size(), 1, [&](size_t begin, size_t end, int) {
    for (size_t k = begin; k < end; ++k) {
      double low = -reach, high = reach;
      for (int step = 0; step < kBisections && low < high; ++step) {
        const double middle = low + (high - low) / 2;
        (eigenvalues_below(diagonal, beside, middle) <= k ? low : high) = middle;
      }
      values[k] = low + (high - low) / 2;
    }
  });
  return values;
}

double gaussian_rate(std::span<const double> variances, double distortion) {
  if (variances.empty()) return 0;
  // The level whose errors sum up to the distortion: between two neighbours of the sorted variances, errors
  // grow linearly with it.
  std::vector<double> sorted(variances.begin(), variances.end());
  for (double& value : sorted) value = std::max(value, 0.0);
  std::ranges::sort(sorted);
  const auto n = static_cast<double>(sorted.size());
  double below = 0, level = INFINITY;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double above = static_cast<double>(sorted.size() - i);
    const double candidate = (distortion * n - below) / above;
    if (candidate <= sorted[i]) {
      level = candidate;
      break;
    }
    below += sorted[i];
  }
  double bits = 0;
  for (const double value : sorted)
    if (value > level) bits += std::log2(value / level) / 2;
  return bits / n;
}

double gaussian_distortion(std::span<const double> variances, double bits) {
  if (variances.empty()) return 0;
  std::vector<double> sorted(variances.begin(), variances.end());
  for (double& value : sorted) value = std::max(value, 0.0);
  std::ranges::sort(sorted, std::greater<>());
  const auto n = static_cast<double>(sorted.size());
  // With the k largest above the water: log2(level) = mean of their logarithms - 2 bits n / k; right for the
  // largest k whose smallest member is above it.
  double logs = 0, level = 0;
  size_t above = 0;
  for (size_t k = 1; k <= sorted.size() && sorted[k - 1] > 0; ++k) {
    logs += std::log2(sorted[k - 1]);
    const double candidate = std::exp2((logs - 2 * bits * n) / static_cast<double>(k));
    if (candidate > sorted[k - 1]) break;
    level = candidate;
    above = k;
  }
  double error = level * static_cast<double>(above);
  for (size_t i = above; i < sorted.size(); ++i) error += sorted[i];
  return error / n;
}

}  // namespace kvcodec
