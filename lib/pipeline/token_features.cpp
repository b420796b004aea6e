#include "lib/pipeline/token_features.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/linalg/covariance.hpp"
#include "lib/linalg/eigen.hpp"

namespace kvcodec {
namespace {

/// Documents of two tokens that the model reads together.
constexpr size_t kPairs = 1024;
/// Directions of the sketch for each feature.
constexpr size_t kDirections = 4;
/// Components with a smaller fraction of the largest variance are rounding errors.
constexpr double kLeastVariance = 1e-10;
constexpr size_t kRowGrain = 64;

size_t values_of_token(const ModelConfig& config) {
  return 2 * as_size(config.num_layers) * as_size(config.key_width());
}

/// Directions that vectors are multiplied with.
size_t directions_for(const ModelConfig& config, size_t features) {
  return std::min(values_of_token(config), kDirections * features);
}

/// Matrices that weighted rows of each side and layer are multiplied with: [side][layer], (width, directions).
std::vector<Matrix<float>> make_directions(const ModelConfig& config, const FeatureOptions& options) {
  const size_t width = as_size(config.key_width()), count = directions_for(config, options.count);
  std::vector<Matrix<float>> directions(2 * as_size(config.num_layers), Matrix<float>(width, count));
  for (size_t i = 0; i < directions.size(); ++i) {
    if (count == values_of_token(config)) {  // the vectors themselves
      for (size_t c = 0; c < width; ++c) directions[i](c, i * width + c) = 1;
      continue;
    }
    Rng rng(options.seed, i);
    for (float& value : std::span(directions[i].data(), directions[i].size()))
      value = static_cast<float>(rng.normal());
  }
  return directions;
}

/// Adds up the sketch of the second token of each document.
class SketchSink final : public PrefillSink {
 public:
  SketchSink(std::span<const Matrix<float>> directions, const WeighRows& weigh, bool before_rope,
             MatrixView<float> sketch)
      : directions_(directions), weigh_(weigh), before_rope_(before_rope), sketch_(sketch) {}

  void layer(const LayerChunk& chunk) override {
    add(Side::key, chunk, before_rope_ ? chunk.key_before_rope : chunk.key);
    add(Side::value, chunk, chunk.value);
  }

 private:
  void add(Side side, const LayerChunk& chunk, MatrixView<const float> rows) {
    const size_t skip = chunk.first % 2 == 0 ? 1 : 0, first = (chunk.first + skip) / 2,
                 count = (rows.rows() + 1 - skip) / 2;
    Matrix<float> seconds(count, rows.cols());
    for (size_t i = 0; i < count; ++i) std::ranges::copy(rows.row(2 * i + skip), seconds.row(i).begin());
    const Matrix<float> weighed = weigh_(side, chunk.layer, seconds);
    parallel_for(count, kRowGrain, [&](size_t begin, size_t end, int) {
      gemm(1, weighed.view().rows(begin, end - begin),
           directions_[static_cast<size_t>(side) * directions_.size() / 2 + as_size(chunk.layer)].view().rows(
               0, rows.cols()),
           1, sketch_.rows(first + begin, end - begin));
    });
  }

  std::span<const Matrix<float>> directions_;
  const WeighRows& weigh_;
  bool before_rope_;
  MatrixView<float> sketch_;
};

/// The weighted vector of each token times the directions: (vocabulary, directions).
Matrix<float> sketch_of(const LlamaModel& model, const WeighRows& weigh, const FeatureOptions& options,
                        const Progress& progress) {
  const std::vector<Matrix<float>> directions = make_directions(model.config(), options);
  const size_t vocabulary = as_size(model.config().vocabulary_size);
  Matrix<float> sketch(vocabulary, directions.front().cols());
  for (size_t done = 0; done < vocabulary; done += kPairs) {
    report(progress, static_cast<double>(2 * done), static_cast<double>(2 * vocabulary));
    const size_t count = std::min(kPairs, vocabulary - done);
    std::vector<uint32_t> tokens;
    std::vector<uint64_t> offsets{0};
    for (size_t i = 0; i < count; ++i) {
      tokens.insert(tokens.end(), {options.first, static_cast<uint32_t>(done + i)});
      offsets.push_back(tokens.size());
    }
    SketchSink sink(directions, weigh, options.before_rope, sketch.view().rows(done, count));
    model.prefill({.tokens = tokens, .offsets = offsets}, {.before_rope = options.before_rope}, sink);
  }
  return sketch;
}

}  // namespace

uint64_t token_features_bytes(const ModelConfig& config, size_t count) {
  const uint64_t directions = directions_for(config, count), vocabulary = as_size(config.vocabulary_size);
  return ((vocabulary + values_of_token(config)) * directions + vocabulary * count) * sizeof(float) +
         5 * directions * directions * sizeof(double);  // sums, covariance and LAPACK's scratch
}

Matrix<float> token_features(const LlamaModel& model, const WeighRows& weigh, const FeatureOptions& options,
                             const Progress& progress) {
  if (options.count == 0) throw failed("no features of tokens");
  Matrix<float> sketch = sketch_of(model, weigh, options, progress);
  CovarianceSums moments(sketch.cols());
  moments.add(sketch);
  const Eigen eigen = symmetric_eigen(moments.covariance());
  const std::vector<double> mean = moments.mean();
  const size_t n = sketch.cols();
  size_t count = 0;
  while (count < std::min(options.count, n) &&
         eigen.values[n - 1 - count] > kLeastVariance * eigen.values.back())
    ++count;
  if (count == 0) throw failed("all tokens of the vocabulary have the same keys and values");
  // U S^(1/2) is what V times S^(-1/2) makes of the vectors; S^2 are the variances. Their mean square: of S.
  Matrix<float> directions(count, n);
  double energy = 0;
  for (size_t i = 0; i < count; ++i) energy += std::sqrt(eigen.values[n - 1 - i]);
  for (size_t i = 0; i < count; ++i) {
    const double scale =
        std::pow(eigen.values[n - 1 - i], -0.25) / std::sqrt(energy / static_cast<double>(count));
    for (size_t j = 0; j < n; ++j) directions(i, j) = static_cast<float>(eigen.vectors(n - 1 - i, j) * scale);
  }
  Matrix<float> features(sketch.rows(), count);
  parallel_for(sketch.rows(), kRowGrain, [&](size_t begin, size_t end, int) {
    const auto rows = sketch.view().rows(begin, end - begin);
    for (size_t i = 0; i < rows.rows(); ++i)
      for (size_t j = 0; j < n; ++j) rows(i, j) -= static_cast<float>(mean[j]);
    gemm(1, rows, transposed(directions), 0, features.view().rows(begin, end - begin));
  });
  return features;
}

}  // namespace kvcodec
