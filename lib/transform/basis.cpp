#include "lib/transform/basis.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/eigen.hpp"

namespace kvcodec {
namespace {

constexpr size_t kRowGrain = 16;
constexpr float kLargestLevel = 127;

Matrix<float> chosen_rows(const Matrix<float>& vectors, std::span<const uint32_t> components) {
  Matrix<float> rows(components.size(), vectors.cols());
  for (size_t i = 0; i < rows.rows(); ++i) std::ranges::copy(vectors.row(components[i]), rows.row(i).begin());
  return rows;
}

}  // namespace

Matrix<float> TransformBasis::analysis(std::span<const uint32_t> components) const {
  return metric.times_root(chosen_rows(vectors, components));
}

Matrix<float> TransformBasis::synthesis(std::span<const uint32_t> components) const {
  return metric.times_inverse_root(chosen_rows(vectors, components));
}

LearnedBasis learn_basis(const CovarianceSums& moments, const ErrorMetric& metric) {
  const size_t width = metric.width();
  const Eigen eigen = symmetric_eigen(metric.between_roots(moments.covariance()));

  LearnedBasis learned;
  const std::vector<double> mean = moments.mean();
  learned.basis.mean.assign(mean.begin(), mean.end());
  learned.basis.metric = metric;
  learned.basis.vectors = Matrix<float>(width, width);
  learned.variances.resize(width);
  parallel_for(width, kRowGrain, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const size_t from = width - 1 - i;  // the largest first
      learned.variances[i] = std::max(eigen.values[from], 0.0);
      for (size_t c = 0; c < width; ++c)
        learned.basis.vectors(i, c) = static_cast<float>(eigen.vectors(from, c));
    }
  });
  return learned;
}

void keep_components(TransformBasis& basis, size_t components) {
  Matrix<float>& rows = basis.vectors;
  if (components >= rows.rows()) return;
  Matrix<float> kept(components, rows.cols());
  std::copy_n(rows.data(), kept.size(), kept.data());
  rows = std::move(kept);
}

ByteRows round_to_byte_rows(MatrixView<const float> rows) {
  ByteRows bytes{Matrix<int8_t>(rows.rows(), rows.cols()), std::vector<float>(rows.rows())};
  parallel_for(rows.rows(), kRowGrain, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      float largest = 0;
      for (const float value : rows.row(i)) largest = std::max(largest, std::abs(value));
      const float scale = largest > 0 ? largest / kLargestLevel : 1;
      bytes.scales[i] = scale;
      for (size_t c = 0; c < rows.cols(); ++c)
        bytes.levels(i, c) = static_cast<int8_t>(
            std::clamp(std::nearbyint(rows(i, c) / scale), -kLargestLevel, kLargestLevel));
    }
  });
  return bytes;
}

Matrix<float> floats_of(const ByteRows& rows) {
  Matrix<float> floats(rows.levels.rows(), rows.levels.cols());
  parallel_for(floats.rows(), kRowGrain, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i)
      for (size_t c = 0; c < floats.cols(); ++c)
        floats(i, c) = static_cast<float>(rows.levels(i, c)) * rows.scales[i];
  });
  return floats;
}

}  // namespace kvcodec
