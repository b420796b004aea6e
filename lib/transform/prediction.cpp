#include "lib/transform/prediction.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/transpose.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/linalg/eigen.hpp"

namespace kvcodec {
namespace {

/// Of features whose mean square is 1: what keeps predictions from rare combinations of tokens near the mean.
constexpr double kRidge = 0.01;
/// Scores are left out that together explain at most this fraction of what no score explains.
constexpr double kLeftOut = 0.005;
constexpr size_t kRowGrain = 64;

/// Part of a covariance as floats: rows from `row` on, columns from `col` on.
Matrix<float> part_of(const Matrix<double>& covariance, size_t row, size_t rows, size_t col, size_t cols) {
  Matrix<float> part(rows, cols);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < cols; ++j) part(i, j) = static_cast<float>(covariance(row + i, col + j));
  return part;
}

/// op(a) op(b), on all threads.
Matrix<float> product(const Matrix<float>& a, const Matrix<float>& b, Transpose transpose_b = Transpose::no) {
  Matrix<float> result(a.rows(), transpose_b == Transpose::no ? b.cols() : b.rows());
  parallel_for(a.rows(), kRowGrain, [&](size_t begin, size_t end, int) {
    gemm(1, a.view().rows(begin, end - begin), Transpose::no, b, transpose_b, 0,
         result.view().rows(begin, end - begin));
  });
  return result;
}

Matrix<double> doubles_of(const Matrix<float>& values) {
  Matrix<double> result(values.rows(), values.cols());
  std::copy_n(values.data(), values.size(), result.data());
  return result;
}

/// What whitens z, ridged: (D + ridge)^-1/2 Q' where Q D Q' is its covariance.
Matrix<float> whitening(const Matrix<double>& covariance, size_t width) {
  const size_t n = covariance.rows() - width;
  Matrix<double> of_z(n, n);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) of_z(i, j) = covariance(width + i, width + j);
  const Eigen eigen = symmetric_eigen(std::move(of_z));
  Matrix<float> result(n, n);
  for (size_t i = 0; i < n; ++i) {
    const double scale = 1 / std::sqrt(std::max(eigen.values[i], 0.0) + kRidge);
    for (size_t j = 0; j < n; ++j) result(i, j) = static_cast<float>(eigen.vectors(i, j) * scale);
  }
  return result;
}

/// The last `rank` of its eigenvectors, those of the largest values first.
Matrix<float> leading(const Eigen& eigen, size_t rank) {
  const size_t n = eigen.values.size();
  Matrix<float> rows(rank, n);
  for (size_t i = 0; i < rank; ++i)
    for (size_t j = 0; j < n; ++j) rows(i, j) = static_cast<float>(eigen.vectors(n - 1 - i, j));
  return rows;
}

double trace_of_weighted(const Matrix<double>& covariance, const ErrorMetric& metric) {
  const size_t width = metric.width();
  Matrix<double> of_x(width, width);
  for (size_t i = 0; i < width; ++i)
    for (size_t j = 0; j < width; ++j) of_x(i, j) = covariance(i, j);
  const Matrix<double> weighted = metric.between_roots(of_x);
  double trace = 0;
  for (size_t i = 0; i < width; ++i) trace += weighted(i, i);
  return trace;
}

/// energies: what each score explains, rising; total: of all vectors.
size_t enough(std::span<const double> energies, double total) {
  double explained = 0;
  for (const double energy : energies) explained += std::max(energy, 0.0);
  const double left = std::max(total - explained, 0.0);
  double dropped = 0;
  size_t drop = 0;
  while (drop + 1 < energies.size() && dropped + std::max(energies[drop], 0.0) <= kLeftOut * left)
    dropped += std::max(energies[drop++], 0.0);
  return energies.size() - drop;
}

}  // namespace

TokenFeatures::TokenFeatures(ByteRows rows, size_t lags) : rows_(std::move(rows)), lags_(lags) {
  if (lags == 0 || rows_.levels.size() == 0)
    throw failed("features of {} values of {} ids, {} lags", of_token(), vocabulary(), lags);
}

void TokenFeatures::gather(std::span<const uint32_t> ids, MatrixView<float> out) const {
  const size_t n = out.rows(), f = of_token();
  if (out.cols() != width() || ids.size() + 1 != n + lags_)
    throw failed("features ({}, {}) of {} ids, {} lags of {}", n, out.cols(), ids.size(), lags_, f);
  for (const uint32_t id : ids)
    if (id >= vocabulary())
      throw bad_input("token id {}; tokens are predicted from ids below {}", id, vocabulary());
  for (size_t t = 0; t < n; ++t)
    for (size_t lag = 0; lag < lags_; ++lag) {
      const uint32_t id = ids[t + lags_ - 1 - lag];
      const std::span<const int8_t> levels = rows_.levels.row(id);
      const std::span<float> to = out.row(t).subspan(lag * f, f);
      for (size_t i = 0; i < f; ++i) to[i] = static_cast<float>(levels[i]) * rows_.scales[id];
    }
}

std::vector<uint32_t> ids_with_lags(
    const std::function<std::vector<uint32_t>(uint64_t first, uint64_t count)>& read, uint64_t first,
    uint64_t count, size_t lags) {
  if (count == 0) return std::vector<uint32_t>(lags - 1);
  const uint64_t before = std::min<uint64_t>(first, lags - 1);
  const std::vector<uint32_t> ids = read(first - before, before + count);
  std::vector<uint32_t> result(lags - 1 - before, ids.front());
  result.insert(result.end(), ids.begin(), ids.end());
  return result;
}

Scores::Scores(const Prediction& prediction) : none_(prediction.rank()) {
  const Matrix<float> rows = floats_of(prediction.scores);
  Matrix<float> columns(rows.cols(), rows.rows());
  transpose(rows.view(), columns.view());
  columns_ = RowSums(columns);
}

Matrix<float> Scores::of(MatrixView<const float> features) const {
  Matrix<float> scores(features.rows(), rank());
  RowCoefficients coefficients(columns_.rows(), features.rows());
  std::vector<float> column(features.rows());
  for (size_t c = 0; c < features.cols(); ++c) {
    for (size_t t = 0; t < column.size(); ++t) column[t] = features(t, c);
    coefficients.append_row(column);
  }
  columns_.add(coefficients, none_, scores);
  return scores;
}

Prediction learn_prediction(const Matrix<double>& covariance, const ErrorMetric& metric, size_t rank) {
  const size_t width = metric.width(), n = covariance.rows() - width;
  const Matrix<float> white = whitening(covariance, width);
  // What white features explain of the weighted vectors: (n, width).
  const Matrix<float> explained = metric.times_root(product(white, part_of(covariance, width, n, 0, width)));
  const Eigen eigen = symmetric_eigen(doubles_of(product(explained, explained, Transpose::yes)));
  if (rank == 0) rank = enough(eigen.values, trace_of_weighted(covariance, metric));
  const Matrix<float> leading_rows = leading(eigen, std::min(rank, n));
  return {round_to_byte_rows(product(leading_rows, white)),
          round_to_byte_rows(metric.times_inverse_root(product(leading_rows, explained)))};
}

Matrix<double> residual_covariance(const Matrix<double>& covariance, const Prediction& prediction) {
  const size_t width = prediction.loadings.levels.cols(), n = covariance.rows() - width;
  const Matrix<float> r = floats_of(prediction.scores), l = floats_of(prediction.loadings);
  // C - K - K' + L' S L where K = Cxz R' L and S is the covariance of the scores: with H = L' (S L / 2 - R Czx), C + H + H'.
  Matrix<float> inner = product(r, part_of(covariance, width, n, 0, width));  // R Czx: (rank, width)
  const Matrix<float> of_scores =
      product(product(r, part_of(covariance, width, n, width, n)), r, Transpose::yes);
  const Matrix<float> half = product(of_scores, l);
  for (size_t i = 0; i < inner.size(); ++i) inner.data()[i] = half.data()[i] / 2 - inner.data()[i];
  Matrix<double> result(width, width);
  parallel_for(width, kRowGrain, [&](size_t begin, size_t end, int) {
    Matrix<float> rows(end - begin, width);
    gemm(1, l.view().columns(begin, end - begin), Transpose::yes, inner, Transpose::no, 0, rows);
    for (size_t i = begin; i < end; ++i)
      for (size_t j = 0; j < width; ++j) result(i, j) = static_cast<double>(rows(i - begin, j));
  });
  for (size_t i = 0; i < width; ++i)
    for (size_t j = 0; j <= i; ++j) {
      const double sum = covariance(i, j) + result(i, j) + result(j, i);
      result(i, j) = result(j, i) = sum;
    }
  return result;
}

}  // namespace kvcodec
