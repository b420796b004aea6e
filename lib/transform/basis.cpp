#include "lib/transform/basis.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/aligned.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/linalg/eigen.hpp"

namespace kvcodec {
namespace {

constexpr size_t kRowGrain = 16;

/// Calls body(first, rows) for 64 of these components' vectors at a time: all of a book's vectors take four times their bytes as
/// floats. On several threads where each has a million products with blocks of the metric: fewer are done sooner than a thread starts.
template <class Body>
void for_some_rows(const ByteRows& vectors, std::span<const uint32_t> components, size_t block,
                   const Body& body) {
  constexpr size_t kRows = 64, kWork = size_t{1} << 20;
  const size_t width = vectors.levels.cols();
  const size_t grain = round_up(std::max(kRows, kWork / std::max<size_t>(width * block, 1)), kRows);
  parallel_for(components.size(), grain, [&](size_t begin, size_t end, int) {
    for (size_t first = begin; first < end; first += kRows) {
      Matrix<float> rows(std::min(kRows, end - first), width);
      for (size_t i = 0; i < rows.rows(); ++i) row_floats(vectors, components[first + i], rows.row(i));
      body(first, MatrixView<const float>(rows));
    }
  });
}

/// These components' vectors times blocks of the metric.
Matrix<float> products(const ByteRows& vectors, std::span<const uint32_t> components,
                       const Matrix<float>& blocks) {
  Matrix<float> result(components.size(), vectors.levels.cols());
  for_some_rows(vectors, components, blocks.cols(), [&](size_t first, MatrixView<const float> rows) {
    ErrorMetric::times(rows, blocks, result.view().rows(first, rows.rows()));
  });
  return result;
}

std::vector<double> diagonal_of(const Matrix<double>& matrix, size_t count) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = matrix(i, i);
  return values;
}

Matrix<float> narrowed(const Matrix<double>& matrix) {
  Matrix<float> floats(matrix.rows(), matrix.cols());
  std::copy_n(matrix.data(), matrix.size(), floats.data());
  return floats;
}

std::vector<float> first_values(const std::vector<double>& values, size_t count) {
  return {values.begin(), values.begin() + static_cast<ptrdiff_t>(count)};
}

/// Subtracts from the mean of the vectors the prediction for the mean of the features, which follows it in the same row:
/// predictions are computed from features that are not centred.
void take_off(std::vector<float>& mean, const Prediction& prediction, const std::vector<double>& means) {
  const Matrix<float> scores = floats_of(prediction.scores), loadings = floats_of(prediction.loadings);
  for (size_t k = 0; k < scores.rows(); ++k) {
    double score = 0;
    for (size_t i = 0; i < scores.cols(); ++i)
      score += static_cast<double>(scores(k, i)) * means[mean.size() + i];
    for (size_t c = 0; c < mean.size(); ++c) mean[c] -= static_cast<float>(score) * loadings(k, c);
  }
}

}  // namespace

Matrix<float> TransformBasis::analysis(std::span<const uint32_t> components) const {
  return products(vectors, components, metric.roots());
}

Matrix<float> TransformBasis::synthesis(std::span<const uint32_t> components) const {
  return products(vectors, components, metric.inverse_roots());
}

Analysis::Analysis(const TransformBasis& basis, std::span<const uint32_t> components)
    : of_vectors_(basis.analysis(components)), of_scores_(components.size(), basis.prediction.rank()) {
  if (of_scores_.size() == 0) return;
  const Matrix<float> loadings = floats_of(basis.prediction.loadings);
  parallel_for(components.size(), kRowGrain, [&](size_t begin, size_t end, int) {
    gemm(1, of_vectors_.view().rows(begin, end - begin), Transpose::no, loadings, Transpose::yes, 0,
         of_scores_.view().rows(begin, end - begin));
  });
}

void Analysis::apply(size_t first, MatrixView<const float> centred, MatrixView<const float> scores,
                     MatrixView<float> out) const {
  if (out.rows() == 0) return;
  gemm(1, of_vectors_.view().rows(first, out.rows()), Transpose::no, centred, Transpose::yes, 0, out);
  if (scores.cols() > 0)
    gemm(-1, of_scores_.view().rows(first, out.rows()), Transpose::no, scores, Transpose::yes, 1, out);
}

Synthesis::Synthesis(const TransformBasis& basis, std::span<const float> mean,
                     std::span<const uint32_t> components)
    : mean_(mean.begin(), mean.end()), rows_(components.size() + basis.prediction.rank(), basis.width()) {
  for_some_rows(basis.vectors, components, basis.metric.block(),
                [&](size_t first, MatrixView<const float> rows) {
                  Matrix<float> back(rows.rows(), rows.cols());
                  ErrorMetric::times(rows, basis.metric.inverse_roots(), back);
                  rows_.set(first, back);
                });
  if (basis.prediction.rank() > 0) rows_.set(components.size(), floats_of(basis.prediction.loadings));
}

LearnedBasis learn_basis(const CovarianceSums& moments, const ErrorMetric& metric, size_t rank,
                         const Progress& progress) {
  const size_t width = metric.width();
  Matrix<double> covariance = moments.covariance();
  if (covariance.rows() < width) throw failed("moments of {} columns, not {}", covariance.rows(), width);
  LearnedBasis learned;
  learned.energies = diagonal_of(covariance, width);
  learned.basis.metric = metric;
  learned.basis.mean = first_values(moments.mean(), width);
  if (covariance.rows() > width) {
    const Prediction& prediction = learned.basis.prediction = learn_prediction(covariance, metric, rank);
    take_off(learned.basis.mean, prediction, moments.mean());
    covariance = residual_covariance(covariance, prediction);
  }
  learned.left = diagonal_of(covariance, width);
  Matrix<float> weighted = narrowed(metric.between_roots(covariance));
  covariance = {};
  const FloatEigen eigen = symmetric_eigen(std::move(weighted), progress);
  learned.vectors = Matrix<float>(width, width);
  learned.variances.resize(width);
  parallel_for(width, kRowGrain, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const size_t from = width - 1 - i;  // the largest first
      learned.variances[i] = std::max(eigen.values[from], 0.0);
      for (size_t c = 0; c < width; ++c) learned.vectors(i, c) = eigen.vectors(from, c);
    }
  });
  return learned;
}

TransformBasis basis_of_first(LearnedBasis learned, size_t components) {
  learned.basis.vectors = round_to_byte_rows(learned.vectors.view().rows(0, components));
  return std::move(learned.basis);
}

}  // namespace kvcodec
