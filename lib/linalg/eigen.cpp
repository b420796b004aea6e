#include "lib/linalg/eigen.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include <cblas.h>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"

// Fortran's compiler passes the lengths of its strings behind everything else.
extern "C" void dsyevd_(const char* job, const char* triangle, const blasint* n, double* a,
                        const blasint* stride, double* values, double* work, const blasint* work_size,
                        blasint* integers, const blasint* integers_size, blasint* info, size_t job_length,
                        size_t triangle_length);
extern "C" void dpotrf_(const char* triangle, const blasint* n, double* a, const blasint* stride,
                        blasint* info, size_t triangle_length);
extern "C" void sstedc_(const char* vectors, const blasint* n, float* diagonal, float* beside, float* z,
                        const blasint* stride, float* work, const blasint* work_size, blasint* integers,
                        const blasint* integers_size, blasint* info, size_t vectors_length);

namespace kvcodec {

template <class T>
static bool finite(const Matrix<T>& matrix) {
  return std::ranges::all_of(std::span(matrix.data(), matrix.size()), [](T x) { return std::isfinite(x); });
}

template <class T>
static void check(const Matrix<T>& matrix) {
  const size_t n = matrix.rows();
  if (n != matrix.cols())
    throw failed("eigenvalues of a {} x {} matrix; it must be square", n, matrix.cols());
  if (n > static_cast<size_t>(std::numeric_limits<int>::max()) / 64)
    throw failed("eigenvalues of a matrix of {} rows; that is too large", n);
  if (!finite(matrix)) throw failed("a matrix of values that are not finite has no eigenvalues");
}

/// job: 'N' for eigenvalues alone, 'V' for eigenvectors too, which replace the matrix: one a row, since LAPACK stores columns.
static std::vector<double> solve(char job, Matrix<double>& matrix) {
  const size_t n = matrix.rows();
  check(matrix);
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

// In floats
//
// The upper triangle of the matrix is worked on, in blocks of rows at fixed places; the blocks on the diagonal are kept whole. A row whose
// reflection is done holds that reflection's vector, from the column behind the diagonal on.

namespace {

/// Reflections that are worked into the matrix together.
constexpr size_t kPanel = 64;
/// Rows of a block, and columns that are multiplied at a time: 512 KiB, which stay in a second-level cache
/// while the block and its mirror image are multiplied.
constexpr size_t kRows = 256, kColumns = 512;
/// Eigenvectors that are turned together.
constexpr size_t kTurned = 128;

double dot(std::span<const float> a, std::span<const float> b) {
  // Lanes: a fixed order of sums that the compiler can make wide.
  constexpr size_t kLanes = 16;
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes)
    for (size_t k = 0; k < kLanes; ++k) lanes[k] += double{a[i + k]} * double{b[i + k]};
  for (; i < a.size(); ++i) lanes[0] += double{a[i]} * double{b[i]};
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// A reflection 1 - factor * v v' that leaves of x its first element alone, which becomes `kept`; v replaces x.
struct Reflection {
  float factor = 0, kept = 0;
};
Reflection reflect(std::span<float> x) {
  const double first = x[0], rest = dot(x.subspan(1), x.subspan(1));
  x[0] = 1;
  if (rest == 0) return {0, static_cast<float>(first)};
  const double kept = std::copysign(std::sqrt(first * first + rest), -first);
  const auto scale = static_cast<float>(1 / (first - kept));
  for (float& value : x.subspan(1)) value *= scale;
  return {static_cast<float>((kept - first) / kept), static_cast<float>(kept)};
}

/// Share of the work that is done when the matrix is tridiagonal, and when that is solved.
constexpr double kReduced = 0.5, kSolved = 0.75;

class Tridiagonal {
 public:
  Tridiagonal(Matrix<float> matrix, const Progress& progress)
      : matrix_(std::move(matrix)),
        factors_(reflections()),
        both_(2 * kPanel, size()),
        swapped_(2 * kPanel, size()),
        parts_((size() + kRows - 1) / kRows, size()) {
    const size_t n = size();
    diagonal.resize(n);
    beside.resize(n == 0 ? 0 : n - 1);
    for (size_t first = 0; first < reflections(); first += kPanel) {
      const double left = static_cast<double>(n - first) / static_cast<double>(n);
      report(progress, kReduced * (1 - left * left * left), 1);
      add_panel(first, std::min(kPanel, reflections() - first));
    }
    for (size_t i = reflections(); i < n; ++i) {
      diagonal[i] = matrix_(i, i);
      if (i + 1 < n) beside[i] = matrix_(i, i + 1);
    }
    parts_ = both_ = swapped_ = {};
  }

  /// Replaces rows, eigenvectors of the tridiagonal matrix, by those of the whole one.
  void turn(Matrix<float>& rows, const Progress& progress) {
    const size_t n = size(), panels = (reflections() + kPanel - 1) / kPanel;
    // The numbers beside the vectors are no longer needed.
    for (size_t i = 0; i < reflections(); ++i)
      std::fill_n(matrix_.row(i).begin(), static_cast<ptrdiff_t>(i + 1), 0.0f);
    std::vector<Matrix<float>> factors(panels);
    const auto count_of = [&](size_t panel) { return std::min(kPanel, reflections() - panel * kPanel); };
    parallel_each(panels, 1, [&](size_t i) { factors[i] = panel_factors(i * kPanel, count_of(i)); });
    std::vector<Matrix<float>> products(static_cast<size_t>(num_threads()),
                                        Matrix<float>(kTurned, 2 * kPanel));
    // Some at a time, so that progress comes from this thread.
    const size_t at_once = kTurned * std::max<size_t>(1, 4 * products.size());
    for (size_t done = 0; done < rows.rows(); done += at_once) {
      report(progress, kSolved + (1 - kSolved) * static_cast<double>(done) / static_cast<double>(n), 1);
      parallel_for(std::min(at_once, rows.rows() - done), kTurned, [&](size_t begin, size_t end, int worker) {
        const auto of_rows = products[static_cast<size_t>(worker)].view().rows(0, end - begin);
        for (size_t panel = panels; panel-- > 0;) {
          const size_t first = panel * kPanel, count = count_of(panel);
          const auto vectors = std::as_const(matrix_).view().rows(first, count).columns(first, n - first);
          const auto own = rows.view().rows(done + begin, end - begin).columns(first, n - first);
          const auto along = of_rows.columns(0, count), factored = of_rows.columns(kPanel, count);
          gemm(1, own, transposed(vectors), 0, along);
          gemm(1, along, transposed(factors[panel]), 0, factored);
          gemm(-1, factored, vectors, 1, own);
        }
      });
    }
  }

  size_t size() const { return matrix_.rows(); }
  std::vector<float> diagonal, beside;

 private:
  size_t reflections() const { return size() < 2 ? 0 : size() - 2; }

  /// Finds the reflections of rows [first, first + count), and works them into the rows behind.
  void add_panel(size_t first, size_t count) {
    const size_t n = size();
    std::vector<float> sums(2 * kPanel);
    for (size_t i = 0; i < count; ++i) {
      const size_t row = first + i, behind = row + 1;
      // This row as the panel's earlier reflections leave it.
      const std::span<float> own = matrix_.row(row).subspan(row);
      const auto earlier = std::span(sums).first(2 * i);
      for (size_t k = 0; k < earlier.size(); ++k) earlier[k] = -swapped_(k, row);
      if (i > 0) gemv(transposed(both_.view().rows(0, 2 * i).columns(row, n - row)), earlier, 1, own);
      diagonal[row] = own[0];
      const std::span<float> v = own.subspan(1);
      const Reflection reflection = reflect(v);
      factors_[row] = reflection.factor;
      beside[row] = reflection.kept;
      // w = factor * (what is left of the matrix) v, less half of factor * (w . v) v.
      std::vector<float> w(v.size());
      product(behind, v, w);
      if (i > 0) {
        gemv(swapped_.view().rows(0, 2 * i).columns(behind, v.size()), v, 0, earlier);
        for (float& sum : earlier) sum = -sum;
        gemv(transposed(both_.view().rows(0, 2 * i).columns(behind, v.size())), earlier, 1, w);
      }
      for (float& value : w) value *= reflection.factor;
      const auto along = static_cast<float>(-0.5 * reflection.factor * dot(w, v));
      for (size_t c = 0; c < w.size(); ++c) w[c] += along * v[c];
      // Pairs side by side, v and w in turn, so that those of the first i are the first 2 i rows.
      std::ranges::copy(v, both_.row(2 * i).begin() + static_cast<ptrdiff_t>(behind));
      std::ranges::copy(w, both_.row(2 * i + 1).begin() + static_cast<ptrdiff_t>(behind));
      std::ranges::copy(w, swapped_.row(2 * i).begin() + static_cast<ptrdiff_t>(behind));
      std::ranges::copy(v, swapped_.row(2 * i + 1).begin() + static_cast<ptrdiff_t>(behind));
    }
    subtract_panel(first, count);
  }

  /// out = what the matrix has from row and column `first` on, times v.
  void product(size_t first, std::span<const float> v, std::span<float> out) {
    const size_t n = size(), first_block = first / kRows, blocks = parts_.rows() - first_block;
    const auto begin_of = [&](size_t block) { return std::max(first, (first_block + block) * kRows); };
    parallel_each(blocks, 1, [&](size_t block) {
      const size_t row = begin_of(block), rows = std::min(n, (first_block + block + 1) * kRows) - row;
      const std::span<float> part = parts_.row(first_block + block);
      const std::span<float> own = part.subspan(row, rows);
      const std::span<const float> of_rows = v.subspan(row - first, rows);
      const MatrixView<float> block_rows = matrix_.view().rows(row, rows);
      gemv(block_rows.columns(row, rows), of_rows, 0, own);
      for (size_t column = row + rows; column < n; column += kColumns) {
        const size_t count = std::min(kColumns, n - column);
        const MatrixView<const float> piece = block_rows.columns(column, count);
        gemv(piece, v.subspan(column - first, count), 1, own);
        gemv(transposed(piece), of_rows, 0, part.subspan(column, count));
      }
    });
    std::ranges::fill(out, 0.0f);
    for (size_t block = 0; block < blocks; ++block) {
      const size_t row = begin_of(block);
      const std::span<const float> part = std::as_const(parts_).row(first_block + block).subspan(row);
      const std::span<float> to = out.subspan(row - first);
      for (size_t c = 0; c < part.size(); ++c) to[c] += part[c];
    }
  }

  /// Works a panel's reflections into the rows behind it.
  void subtract_panel(size_t first, size_t count) {
    const size_t n = size(), behind = first + count, first_block = behind / kRows;
    parallel_each(parts_.rows() - first_block, 1, [&](size_t i) {
      const size_t block = first_block + i, row = std::max(behind, block * kRows),
                   rows = std::min(n, (block + 1) * kRows) - row;
      gemm(-1, transposed(both_.view().rows(0, 2 * count).columns(row, rows)),
           swapped_.view().rows(0, 2 * count).columns(row, n - row), 1,
           matrix_.view().rows(row, rows).columns(row, n - row));
    });
  }

  /// The matrix T of a panel's reflections, whose product is 1 - V T V' (Schreiber and Van Loan 1989);
  /// (count, count), with zeros below the diagonal.
  Matrix<float> panel_factors(size_t first, size_t count) const {
    const auto vectors = matrix_.view().rows(first, count);
    Matrix<float> products(count, count), factors(count, count);
    gemm(1, vectors, transposed(vectors), 0, products);
    for (size_t i = 0; i < count; ++i) {
      const float own = factors_[first + i];
      factors(i, i) = own;
      for (size_t row = 0; row < i; ++row) {
        double sum = 0;
        for (size_t k = row; k < i; ++k) sum += double{factors(row, k)} * double{products(k, i)};
        factors(row, i) = static_cast<float>(-own * sum);
      }
    }
    return factors;
  }

  Matrix<float> matrix_;
  std::vector<float> factors_;
  Matrix<float> both_;     // of a panel: its vectors, then what is paired with them
  Matrix<float> swapped_;  // the same the other way round
  Matrix<float> parts_;    // products of blocks of rows
};

/// Eigenvectors of a tridiagonal matrix, one a row; `diagonal` becomes the eigenvalues, rising.
Matrix<float> solve_tridiagonal(std::vector<float>& diagonal, std::vector<float>& beside) {
  const size_t n = diagonal.size();
  Matrix<float> vectors(n, n);
  const OnThisThread on_this_thread;
  const char with_vectors = 'I';
  const auto size = static_cast<blasint>(n);
  const std::vector<float>::size_type works = 1 + 4 * n + n * n;
  if (works > static_cast<size_t>(std::numeric_limits<blasint>::max()))
    throw failed("eigenvalues of a matrix of {} rows; that is too large", n);
  std::vector<float> work(works);
  std::vector<blasint> integers(3 + 5 * n);
  const auto work_size = static_cast<blasint>(works), integers_size = static_cast<blasint>(integers.size());
  blasint info = 0;
  sstedc_(&with_vectors, &size, diagonal.data(), beside.data(), vectors.data(), &size, work.data(),
          &work_size, integers.data(), &integers_size, &info, 1);
  if (info != 0) throw failed("LAPACK found no eigenvalues of a matrix of {} rows (info {})", n, info);
  return vectors;
}

}  // namespace

FloatEigen symmetric_eigen(Matrix<float> matrix, const Progress& progress) {
  const size_t n = matrix.rows();
  check(matrix);
  FloatEigen eigen;
  if (n == 0) return eigen;
  float largest = 0;
  for (size_t i = 0; i < matrix.size(); ++i) largest = std::max(largest, std::abs(matrix.data()[i]));
  // Squares must neither overflow nor vanish.
  const int exponent = largest > 0 ? std::ilogb(largest) : 0;
  for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = std::ldexp(matrix.data()[i], -exponent);
  Tridiagonal reduced(std::move(matrix), progress);
  report(progress, kReduced, 1);
  eigen.vectors = solve_tridiagonal(reduced.diagonal, reduced.beside);
  reduced.turn(eigen.vectors, progress);
  for (const float value : reduced.diagonal) eigen.values.push_back(std::ldexp(double{value}, exponent));
  return eigen;
}

}  // namespace kvcodec
