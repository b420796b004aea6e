#include "lib/transform/train.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec {
namespace {

/// Tokens are left out in runs, which share what neighbours have in common.
constexpr uint64_t kRun = 256;
/// So many are enough for tables and gains; fewer where that would be more than one in eight.
constexpr uint64_t kMostSampled = 8192;
constexpr uint64_t kLeastRunsApart = 8;
constexpr uint64_t kLeastTokens = 1024;
/// Components of deviations below this part of the finest step give hardly a level.
constexpr double kLeastDeviation = 0.1;
constexpr size_t kStepsPerOctave = 4;
/// Of a Gaussian component at fine steps: half the logarithm of 2 pi e.
constexpr double kFineBits = 2.05;
constexpr size_t kComponentGrain = 64;

bool is_sampled(uint64_t run, uint64_t apart) { return run % apart == apart - 1; }

uint64_t runs_apart(uint64_t tokens) {
  return std::max(kLeastRunsApart, (tokens + kMostSampled - 1) / kMostSampled);
}

/// Calls body(first, count) for the runs that are sampled, or for the others.
template <class Body>
void for_each_run(const VectorSource& source, bool sampled, const Body& body) {
  const uint64_t tokens = source.tokens(), apart = runs_apart(tokens);
  for (uint64_t first = 0; first < tokens; first += kRun)
    if (is_sampled(first / kRun, apart) == sampled) body(first, std::min(kRun, tokens - first));
}

/// About the bits of a token at this step, over all parts.
double bits_at(std::span<const LearnedBasis> bases, double step) {
  double bits = 0;
  for (const LearnedBasis& learned : bases)
    for (const double variance : learned.variances)
      if (variance > 0) bits += std::max(0.0, std::log2(std::sqrt(variance) / step) + kFineBits);
  return bits;
}

/// The step that takes about so many bits a token.
double step_for(std::span<const LearnedBasis> bases, double bits) {
  double fine = 0, coarse = 0;
  for (const LearnedBasis& learned : bases)
    coarse = std::max(coarse, 8 * std::sqrt(learned.variances.front()));
  fine = coarse * 0x1p-60;
  for (int i = 0; i < 60; ++i) {
    const double middle = std::sqrt(fine * coarse);
    (bits_at(bases, middle) > bits ? fine : coarse) = middle;
  }
  return coarse;
}

std::vector<float> ladder(double coarsest, double finest) {
  std::vector<float> steps;
  const auto count = static_cast<size_t>(std::ceil(std::log2(coarsest / finest) * kStepsPerOctave)) + 1;
  for (size_t i = 0; i < count; ++i)
    steps.push_back(static_cast<float>(
        coarsest * std::exp2(-static_cast<double>(i) / static_cast<double>(kStepsPerOctave))));
  return steps;
}

/// A run of vectors of a part and their features.
struct RunRows {
  explicit RunRows(const VectorSource& of)
      : source(of), vectors(kRun, of.width()), features(kRun, of.features()) {}

  void read(size_t part, uint64_t first, uint64_t count) {
    source.read(part, first, vectors.view().rows(0, count));
    if (features.cols() > 0) source.read_features(first, features.view().rows(0, count));
  }

  const VectorSource& source;
  Matrix<float> vectors, features;
};

LearnedBasis basis_of(const VectorSource& source, size_t part, const ErrorMetric& metric, size_t rank) {
  const size_t width = source.width(), features = source.features();
  CovarianceSums moments(width + features);
  RunRows run(source);
  Matrix<float> together(kRun, width + features);
  for_each_run(source, false, [&](uint64_t first, uint64_t count) {
    run.read(part, first, count);
    for (size_t t = 0; t < count; ++t) {
      std::ranges::copy(run.vectors.row(t), together.row(t).begin());
      std::ranges::copy(run.features.row(t), together.row(t).begin() + static_cast<ptrdiff_t>(width));
    }
    moments.add(together.view().rows(0, count));
  });
  return learn_basis(moments, metric, rank);
}

/// Components of the tokens that were left out: (components, tokens).
Matrix<float> sample_of(const VectorSource& source, size_t part, const TransformBasis& basis) {
  uint64_t tokens = 0;
  for_each_run(source, true, [&](uint64_t, uint64_t count) { tokens += count; });
  Matrix<float> sample(basis.components(), tokens);
  std::vector<uint32_t> all(basis.components());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint32_t>(i);
  const Analysis analysis(basis, all);
  const Scores of_prediction(basis.prediction);
  RunRows run(source);
  uint64_t done = 0;
  for_each_run(source, true, [&](uint64_t first, uint64_t count) {
    run.read(part, first, count);
    const Matrix<float> scores = of_prediction.of(run.features.view().rows(0, count));
    const auto piece = run.vectors.view().rows(0, count);
    for (size_t t = 0; t < count; ++t)
      for (size_t c = 0; c < piece.cols(); ++c) piece(t, c) -= basis.mean[c];
    parallel_for(all.size(), kComponentGrain, [&](size_t begin, size_t end, int) {
      analysis.apply(begin, piece, scores, sample.view().rows(begin, end - begin).columns(done, count));
    });
    done += count;
  });
  return sample;
}

std::vector<FirstTokens> first_tokens_of(const VectorSource& source, std::span<const TransformBasis> bases,
                                         std::span<const float> steps, const TransformTraining& training) {
  std::vector<FirstTokens> firsts;
  const uint64_t count = source.first_tokens();
  if (training.first_finer == 0 || count < kLeastFirstTokens) return firsts;
  Matrix<float> rows(count, source.width());
  for (size_t part = 0; part < source.parts(); ++part) {
    source.read_first_tokens(part, rows);
    firsts.push_back(learn_first_tokens(rows, bases[part].metric, source.width() / training.head_dim, steps,
                                        training.first_finer));
  }
  return firsts;
}

/// Drops components behind the last one that lives at any step.
void drop_dead(TransformBasis& basis, std::vector<LevelRung>& rungs) {
  size_t kept = 0;
  for (const LevelRung& rung : rungs)
    for (size_t i = 0; i < rung.classes.size(); ++i)
      if (rung.classes[i] != kDeadClass) kept = std::max(kept, i + 1);
  keep_components(basis, kept);
  for (LevelRung& rung : rungs) rung.classes.resize(kept), rung.gains.resize(kept);
}

}  // namespace

LearnedTransform learn_transform(const VectorSource& source, std::span<const ErrorMetric> metrics,
                                 const TransformTraining& training, const Progress& progress) {
  if (source.tokens() < kLeastTokens * 2)
    throw bad_input("{} tokens; a transform is learned from {} and more, better from 100,000",
                    source.tokens(), kLeastTokens * 2);
  if (metrics.size() != source.parts())
    throw failed("metrics of {} parts of {}", metrics.size(), source.parts());
  // Bases take most of the time, samples and levels the rest.
  const double parts = static_cast<double>(source.parts()), all = 2 * parts + 1;
  LearnedTransform result;
  result.values = parts * static_cast<double>(source.width());
  std::vector<LearnedBasis> learned;
  for (size_t part = 0; part < source.parts(); ++part) {
    report(progress, static_cast<double>(part), all, "bases");
    learned.push_back(basis_of(source, part, metrics[part], training.rank));
  }
  const double coarsest = step_for(learned, training.least_bits * result.values),
               finest = step_for(learned, training.most_bits * result.values);
  const std::vector<float> steps = ladder(coarsest, finest);
  std::vector<Matrix<float>> samples;
  for (size_t part = 0; part < source.parts(); ++part) {
    report(progress, parts + static_cast<double>(part), all, "samples");
    LearnedBasis& of_part = learned[part];
    const double least = kLeastDeviation * finest;
    const auto kept = std::ranges::find_if(of_part.variances, [&](double v) { return v < least * least; });
    keep_components(of_part.basis, static_cast<size_t>(kept - of_part.variances.begin()));
    // As it will be read back.
    of_part.basis.vectors = floats_of(round_to_byte_rows(of_part.basis.vectors));
    samples.push_back(sample_of(source, part, of_part.basis));
    result.bases.push_back(std::move(of_part.basis));
    result.energies.push_back(std::move(of_part.energies));
    result.left.push_back(std::move(of_part.left));
  }
  report(progress, 2 * parts, all, "levels");
  result.levels = learn_levels(samples, steps, training.levels);
  for (RungMeasure& measure : result.levels.measures) measure.bits /= result.values;
  for (size_t part = 0; part < source.parts(); ++part)
    drop_dead(result.bases[part], result.levels.rungs[part]);
  result.firsts = first_tokens_of(source, result.bases, steps, training);
  report(progress, all, all);
  return result;
}

uint64_t learn_transform_bytes(const VectorSource& source) {
  const uint64_t width = source.width(), square = (width + source.features()) * (width + source.features());
  // The eigenproblem of one part (sums, covariance, LAPACK's scratch), then vectors and samples of all.
  return 5 * square * sizeof(double) +
         source.parts() * width * (width + std::min(kMostSampled, source.tokens())) * sizeof(float);
}

}  // namespace kvcodec
