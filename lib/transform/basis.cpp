#include "lib/transform/basis.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/core/aligned.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/linalg/eigen.hpp"
#include "lib/transform/rounding.hpp"

namespace kvcodec {
namespace {

constexpr size_t kRowGrain = 64;
/// Measured blocks: the least eigenvalue, of the largest one, and what is added everywhere, of the mean weight.
constexpr double kLeastEigenvalue = 1e-6, kFloor = 0.01;
/// Beyond that an inverse has no digit right: the least eigenvalue, of the largest one.
constexpr double kLeastOfLargest = 0x1p-40;
/// Traces of blocks of V: within these neither V nor W leaves the range of floats.
constexpr double kLeastTrace = 0x1p-80, kMaxTrace = 0x1p80;
/// The ridge, of features whose mean square is 1, keeps predictions from rare combinations of tokens near the mean.
constexpr double kRidge = 0.01;
/// Scores are left out that together explain at most this fraction of what no score explains.
constexpr double kLeftOut = 0.005;

template <class To, class From>
Matrix<To> converted(MatrixView<const From> values) {
  Matrix<To> result(values.rows(), values.cols());
  for (size_t i = 0; i < values.rows(); ++i)
    std::ranges::transform(values.row(i), result.row(i).begin(),
                           [](From value) { return static_cast<To>(value); });
  return result;
}

template <class To, class From>
Matrix<To> converted(const Matrix<From>& values) {
  return converted<To>(values.view());
}

std::vector<double> diagonal_of(const Matrix<double>& matrix) {
  std::vector<double> values(matrix.rows());
  for (size_t i = 0; i < values.size(); ++i) values[i] = matrix(i, i);
  return values;
}

double trace_of(const Matrix<double>& matrix) {
  double sum = 0;
  for (const double value : diagonal_of(matrix)) sum += value;
  return sum;
}

/// a b, on all threads.
Matrix<float> product(const Matrix<float>& a, const Factor& b) {
  Matrix<float> result(a.rows(), b.cols());
  parallel_for(a.rows(), kRowGrain, [&](size_t begin, size_t end, int) {
    gemm(1, a.view().rows(begin, end - begin), b, 0, result.view().rows(begin, end - begin));
  });
  return result;
}

// Metric

/// Calls body(i, block) for each block, on several threads. Throws Error(failed) for one that is not symmetric.
template <class Value, class Body>
void for_each_block(const Matrix<Value>& blocks, const Body& body) {
  const size_t b = blocks.cols();
  if (b == 0 || blocks.rows() % b != 0)
    throw failed("blocks of {} columns for vectors of {}", b, blocks.rows());
  // Thousands of numbers, a block each, are done sooner than a thread starts.
  constexpr size_t kWork = 4096;
  parallel_each(blocks.rows() / b, kWork / (b * b * b), [&](size_t i) {
    Matrix<double> block = converted<double>(blocks.view().rows(i * b, b));
    for (size_t r = 0; r < b; ++r)
      for (size_t c = 0; c < r; ++c)
        if (block(r, c) != block(c, r)) throw failed("block {} is not symmetric", i);
    body(i, std::move(block));
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
  return converted<float>(blocks);
}

// Prediction

/// The matrix that whitens z, ridged: (D + ridge)^-1/2 Q' where Q D Q' is its covariance.
Matrix<float> whitening(MatrixView<const double> covariance) {
  Eigen eigen = symmetric_eigen(converted<double>(covariance));
  for (size_t i = 0; i < eigen.values.size(); ++i) {
    const double scale = 1 / std::sqrt(std::max(eigen.values[i], 0.0) + kRidge);
    for (double& value : eigen.vectors.row(i)) value *= scale;
  }
  return converted<float>(eigen.vectors);
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

// Basis

/// Calls body(first, rows) for 64 of these components' vectors at a time: all of a book's vectors take four times their bytes as
/// floats. On several threads where each has a million products with blocks of the metric: fewer are done sooner than a thread starts.
template <class Body>
void for_some_rows(const LevelRows& vectors, std::span<const uint32_t> components, size_t block,
                   const Body& body) {
  constexpr size_t kRows = 64, kWork = size_t{1} << 20;
  const size_t width = vectors.cols();
  const size_t grain = round_up(std::max(kRows, kWork / std::max<size_t>(width * block, 1)), kRows);
  parallel_for(components.size(), grain, [&](size_t begin, size_t end, int) {
    for (size_t first = begin; first < end; first += kRows) {
      Matrix<float> rows(std::min(kRows, end - first), width);
      for (size_t i = 0; i < rows.rows(); ++i) vectors.floats(components[first + i], rows.row(i));
      body(first, MatrixView<const float>(rows));
    }
  });
}

/// These components' vectors times blocks of the metric.
Matrix<float> products(const LevelRows& vectors, std::span<const uint32_t> components,
                       const Matrix<float>& blocks) {
  Matrix<float> result(components.size(), vectors.cols());
  for_some_rows(vectors, components, blocks.cols(), [&](size_t first, MatrixView<const float> rows) {
    ErrorMetric::times(rows, blocks, result.view().rows(first, rows.rows()));
  });
  return result;
}

/// Rounding to bf16 brings this fraction of the mean variance into a component: 2^-16 / 3 at most (just above a power of two) by the vectors and by the
/// basis in the product, and by the basis where the components that were found are taken off.
constexpr double kLeftByBf16 = 0x1p-16;
/// Products in bf16 may bring this part of `brought`.
constexpr double kOfBrought = 0.2;

/// A stage of analysis ends before this component, and may multiply in bf16.
struct StageEnd {
  size_t end;
  bool coarse;
};

/// The ends of analysis' stages, rising. Rounding brings into a component a fraction (left_by_rounding) of the mean variance of all that no stage before
/// has taken off; on average over a stage that is no more than `brought` bounds. Stages are made from the last one on, each as long as that allows.
std::vector<StageEnd> ends_of_stages(const LevelRows& rows, std::span<const uint32_t> components,
                                     double brought) {
  std::vector<StageEnd> ends;
  double variance = 0, left = 0;
  int behind = 0;  // bits of the component behind; an end among equally loud ones would gain nothing
  const auto width = static_cast<double>(rows.cols());
  for (size_t first = components.size(); first > 0; --first) {
    const int bits = rows.bits()[components[first - 1]];
    variance += variance_for(bits), left += left_by_rounding(bits);
    const double mean = variance / width;
    if (ends.empty() ||
        (bits > behind && left * mean > brought * static_cast<double>(ends.back().end - first + 1)))
      ends.push_back({first, false}), left = left_by_rounding(bits);
    ends.back().coarse = kLeftByBf16 * mean <= kOfBrought * brought;
    behind = bits;
  }
  std::ranges::reverse(ends);
  return ends;
}

PackedMatrix packed(MatrixView<const float> rows, DType type) {
  const PackedMatrix::Shape shape[] = {{rows.rows(), rows.cols()}};
  PackedMatrix result = PackedMatrix::of(type, shape).front();
  parallel_for(rows.rows(), round_up(kRowGrain, result.row_step()), [&](size_t begin, size_t end, int) {
    const auto some = rows.rows(begin, end - begin);
    if (type == DType::f32) return result.set(begin, some);
    Matrix<uint16_t> halves(some.rows(), some.cols());
    for (size_t i = 0; i < some.rows(); ++i) narrow(type, some.row(i), halves.row(i));
    result.set(begin, halves);
  });
  return result;
}

/// out = x times the transpose of w, or out += that.
void multiply(MatrixView<const float> x, const PackedMatrix& w, bool add, MatrixView<float> out) {
  if (w.elements() == DType::f32) return gemm_packed(x, w, add, out);
  Matrix<uint16_t> halves(x.rows(), x.cols());
  for (size_t i = 0; i < x.rows(); ++i) narrow(w.elements(), x.row(i), halves.row(i));
  gemm_packed(halves, w, add, out);
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

// Metric of errors

ErrorMetric::ErrorMetric(std::span<const float> weights)
    : ErrorMetric(converted<double>(MatrixView<const float>(weights.data(), weights.size(), 1))) {}

ErrorMetric::ErrorMetric(Matrix<double> blocks)
    : ErrorMetric(from_inverse_roots(powers_of(std::move(blocks), -0.5))) {}

ErrorMetric ErrorMetric::from_inverse_roots(Matrix<float> inverse_roots) {
  ErrorMetric metric;
  try {
    for_each_block(inverse_roots, [](size_t i, Matrix<double> block) {
      const double trace = trace_of(block);
      if (!(trace >= kLeastTrace && trace <= kMaxTrace))
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
  return roots_->get([&] { return powers_of(converted<double>(inverse_roots_), -1); });
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
      gemm(1, some.columns(c, b), blocks.rows(c, b), 0, to.columns(c, b));
  });
}

Matrix<double> ErrorMetric::between_roots(MatrixView<const double> matrix) const {
  const size_t n = width(), b = block();
  const Matrix<float>& roots = this->roots();
  if (matrix.rows() != n || matrix.cols() != n)
    throw failed("a metric of {} columns for a matrix of {}", n, matrix.rows());
  // Twice its rows times W, turned over: W (matrix W)' = W matrix W.
  const auto turned_product = [&](MatrixView<const double> from) {
    Matrix<double> to(n, n);
    parallel_each(n, kRowGrain, [&](size_t i) {
      for (size_t c = 0; c < n; ++c) {
        double sum = 0;
        for (size_t k = 0; k < b; ++k) sum += from(i, c / b * b + k) * static_cast<double>(roots(c, k));
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

// Prediction from token ids

TokenFeatures::TokenFeatures(LevelRows rows, size_t lags) : rows_(std::move(rows)), lags_(lags) {
  if (lags == 0 || rows_.rows() * rows_.cols() == 0)
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
    for (size_t lag = 0; lag < lags_; ++lag)
      rows_.floats(ids[t + lags_ - 1 - lag], out.row(t).subspan(lag * f, f));
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
  Matrix<float> scores(features.rows(), none_.size());
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
  const auto of_features = covariance.view().rows(width, n);
  const Matrix<float> white = whitening(of_features.columns(width, n));
  // The part of the weighted vectors that white features explain: (n, width).
  const Matrix<float> explained =
      metric.times_root(product(white, converted<float>(of_features.columns(0, width))));
  const Eigen eigen = symmetric_eigen(converted<double>(product(explained, transposed(explained))));
  if (rank == 0)
    rank = enough(eigen.values,
                  trace_of(metric.between_roots(covariance.view().rows(0, width).columns(0, width))));
  rank = std::min(rank, n);
  Matrix<float> leading(rank, n);  // eigenvectors, those of the largest values first
  for (size_t i = 0; i < rank; ++i)
    for (size_t j = 0; j < n; ++j) leading(i, j) = static_cast<float>(eigen.vectors(n - 1 - i, j));
  return {round_to_byte_rows(product(leading, white)),
          round_to_byte_rows(metric.times_inverse_root(product(leading, explained)))};
}

Matrix<double> residual_covariance(const Matrix<double>& covariance, const Prediction& prediction) {
  const size_t width = prediction.loadings.cols(), n = covariance.rows() - width;
  const Matrix<float> r = floats_of(prediction.scores), l = floats_of(prediction.loadings);
  const auto of_features = covariance.view().rows(width, n);
  // C - K - K' + L' S L where K = Cxz R' L and S is the covariance of the scores: with H = L' (S L / 2 - R Czx), C + H + H'.
  Matrix<float> inner = product(r, converted<float>(of_features.columns(0, width)));  // R Czx: (rank, width)
  const Matrix<float> of_scores =
      product(product(r, converted<float>(of_features.columns(width, n))), transposed(r));
  const Matrix<float> half = product(of_scores, l);
  for (size_t i = 0; i < inner.size(); ++i) inner.data()[i] = half.data()[i] / 2 - inner.data()[i];
  Matrix<double> result(width, width);
  parallel_for(width, kRowGrain, [&](size_t begin, size_t end, int) {
    Matrix<float> rows(end - begin, width);
    gemm(1, transposed(l.view().columns(begin, end - begin)), inner, 0, rows);
    for (size_t i = begin; i < end; ++i) std::ranges::copy(rows.row(i - begin), result.row(i).begin());
  });
  for (size_t i = 0; i < width; ++i)
    for (size_t j = 0; j <= i; ++j)
      result(i, j) = result(j, i) = covariance(i, j) + result(i, j) + result(j, i);
  return result;
}

// Bases

Matrix<float> TransformBasis::synthesis(std::span<const uint32_t> components) const {
  return products(vectors, components, metric.inverse_roots());
}

Analysis::Analysis(const TransformBasis& basis, std::span<const uint32_t> components, double brought)
    : metric_(basis.metric),
      loadings_(floats_of(basis.prediction.loadings)),
      vectors_(components.size(), basis.width()) {
  for_some_rows(basis.vectors, components, 1, [&](size_t first, MatrixView<const float> rows) {
    std::copy_n(rows.data(), rows.rows() * rows.cols(), vectors_.row(first).data());
  });
  const bool halves = why_no_bf16().empty();
  for (const auto& [end, coarse] : ends_of_stages(basis.vectors, components, brought)) {
    stages_.push_back({stages_.empty() ? 0 : stages_.back().end, end, {}, {}});
    Stage& stage = stages_.back();
    if (!packs_floats()) continue;  // nor is bf16 multiplied then
    const DType type = coarse && halves ? DType::bf16 : DType::f32;
    const auto own = vectors_.view().rows(stage.first, end - stage.first);
    stage.packed = packed(own, type);
    if (end == components.size()) continue;
    Matrix<float> back(own.cols(), own.rows());
    transpose<float>(own, back);
    for (float& value : std::span(back.data(), back.size())) value = -value;
    stage.back = packed(back, type);
  }
  if (packs_floats()) vectors_ = {};
}

Matrix<float> Analysis::weighted(MatrixView<float> centred, MatrixView<const float> scores) const {
  if (scores.cols() > 0) gemm(-1, scores, loadings_, 1, centred);
  return metric_.times_root(centred);
}

void Analysis::apply(MatrixView<float> weighted, MatrixView<float> out) const {
  for (const Stage& stage : stages_) {
    const size_t count = stage.end - stage.first;
    Matrix<float> found(weighted.rows(), count);
    const auto own = stage.packed ? MatrixView<const float>() : vectors_.view().rows(stage.first, count);
    if (stage.packed)
      multiply(weighted, *stage.packed, false, found);
    else
      gemm(1, weighted, transposed(own), 0, found);
    if (stage.back)
      multiply(found, *stage.back, true, weighted);
    else if (stage.end < out.rows())
      gemm(-1, found, own, 1, weighted);
    transpose<float>(found, out.rows(stage.first, count));
  }
}

Synthesis::Synthesis(const TransformBasis& basis, std::span<const float> mean,
                     std::span<const uint32_t> components)
    : mean_(mean.begin(), mean.end()), rows_(components.size() + basis.prediction.rank(), basis.width()) {
  for_some_rows(basis.vectors, components, basis.metric.block(),
                [&](size_t first, MatrixView<const float> rows) {
                  rows_.set(first, basis.metric.times_inverse_root(rows));
                });
  if (basis.prediction.rank() > 0) rows_.set(components.size(), floats_of(basis.prediction.loadings));
}

LearnedBasis learn_basis(const CovarianceSums& moments, const ErrorMetric& metric, size_t rank,
                         const Progress& progress) {
  const size_t width = metric.width();
  Matrix<double> covariance = moments.covariance();
  if (covariance.rows() < width) throw failed("moments of {} columns, not {}", covariance.rows(), width);
  LearnedBasis learned;
  learned.energies = diagonal_of(covariance);
  learned.energies.resize(width);
  learned.basis.metric = metric;
  const std::vector<double> means = moments.mean();
  learned.basis.mean.assign(means.begin(), means.begin() + static_cast<ptrdiff_t>(width));
  if (covariance.rows() > width) {
    const Prediction& prediction = learned.basis.prediction = learn_prediction(covariance, metric, rank);
    take_off(learned.basis.mean, prediction, means);
    covariance = residual_covariance(covariance, prediction);
  }
  learned.left = diagonal_of(covariance);
  Matrix<float> weighted = converted<float>(metric.between_roots(covariance));
  covariance = {};
  const FloatEigen eigen = symmetric_eigen(std::move(weighted), progress);
  learned.vectors = Matrix<float>(width, width);
  learned.variances.resize(width);
  for (size_t i = 0; i < width; ++i) {
    const size_t from = width - 1 - i;  // the largest first
    learned.variances[i] = std::max(eigen.values[from], 0.0);
    for (size_t c = 0; c < width; ++c) learned.vectors(i, c) = eigen.vectors(from, c);
  }
  return learned;
}

double brought_at(double vector_error, double step, double finest) {
  constexpr double kBrought = 0.1;  // of the error of a component's quantizer
  return kBrought / std::max(vector_error, 0.01) * (step / finest) * (step / finest);
}

TransformBasis basis_of_first(LearnedBasis learned, size_t components, double bound) {
  learned.basis.vectors =
      round_vectors(learned.vectors.view().rows(0, components),
                    bits_of_vectors(std::span(learned.variances).first(components), bound));
  return std::move(learned.basis);
}

}  // namespace kvcodec
