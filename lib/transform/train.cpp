#include "lib/transform/train.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec {
namespace {

/// Tokens are held out in runs, because neighbours have much in common: single ones would be too much like the rest.
constexpr uint64_t kRun = 256;
/// About this many held-out tokens are enough for tables and gains; at most one run in kMinRunsApart is held out.
constexpr uint64_t kMaxSampled = 8192;
constexpr uint64_t kMinRunsApart = 8;
constexpr uint64_t kMinTokens = 2048;
/// Components whose deviation is a smaller fraction of the finest step have hardly a level other than 0.
constexpr double kMinDeviation = 0.1;
constexpr size_t kStepsPerOctave = 4;
/// At fine steps a Gaussian component takes log2(deviation / step) bits plus log2(2 pi e) / 2, which is this number.
constexpr double kFineBits = 2.05;
/// The finest step over the largest deviation: values of 16 bits hold no more, and levels end at 2^23.
constexpr double kMinStep = 0x1p-16;
constexpr size_t kTokenGrain = 64;

struct TokenRun {
  uint64_t first = 0, count = 0;
};

/// The runs that are held out (sampled), or the others.
std::vector<TokenRun> runs_of(const VectorSource& source, bool sampled) {
  const uint64_t tokens = source.tokens(),
                 apart = std::max(kMinRunsApart, (tokens + kMaxSampled - 1) / kMaxSampled);
  std::vector<TokenRun> runs;
  for (uint64_t first = 0; first < tokens; first += kRun)
    if ((first / kRun % apart == apart - 1) == sampled)
      runs.push_back({first, std::min(kRun, tokens - first)});
  return runs;
}

/// Estimates the bits of a token at this step, over all parts.
double bits_at(std::span<const LearnedBasis> bases, double step) {
  double bits = 0;
  for (const LearnedBasis& learned : bases)
    for (const double variance : learned.variances)
      if (variance > 0) bits += std::max(0.0, std::log2(std::sqrt(variance) / step) + kFineBits);
  return bits;
}

/// The largest deviation of a component. Throws Error(bad_input) where all are 0.
double largest_deviation(std::span<const LearnedBasis> bases) {
  double variance = 0;
  for (const LearnedBasis& learned : bases) variance = std::max(variance, learned.variances.front());
  if (variance > 0) return std::sqrt(variance);
  throw bad_input("all tokens have the same keys and values; a transform is learned from how they differ");
}

/// The step at which a token takes about this many bits, or the finest step allowed.
double step_for(std::span<const LearnedBasis> bases, double bits) {
  const double largest = largest_deviation(bases);
  double coarse = 8 * largest, fine = kMinStep * largest;
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

/// Reads runs of a part: rows that are a vector each, followed by its features.
class RunRows {
 public:
  RunRows(const VectorSource& source, size_t part)
      : source_(source),
        part_(part),
        vectors_(kRun, source.width(part)),
        features_(kRun, source.features()),
        together_(kRun, source.width(part) + source.features()) {}

  MatrixView<float> read(const TokenRun& run) {
    source_.read(part_, run.first, vectors_.view().rows(0, run.count));
    if (features_.cols() > 0) source_.read_features(run.first, features_.view().rows(0, run.count));
    for (size_t t = 0; t < run.count; ++t)
      std::ranges::copy(features_.row(t), std::ranges::copy(vectors_.row(t), together_.row(t).begin()).out);
    return together_.view().rows(0, run.count);
  }

 private:
  const VectorSource& source_;
  size_t part_;
  Matrix<float> vectors_, features_, together_;
};

/// Moments of vectors with their features, over the runs that are not held out. All ranks read the first run, for the origin.
CovarianceSums moments_of(const VectorSource& source, size_t part, const Team& team) {
  const std::vector<TokenRun> runs = runs_of(source, false);
  RunRows reader(source, part);
  const std::vector<float> origin = CovarianceSums::mean_of_first(reader.read(runs.front()));
  auto sums = sum_slices(team, runs.size(), CovarianceSums::count_of_sums(origin.size()),
                         [&](size_t first, size_t end) {
                           CovarianceSums slice(origin, {});
                           for (size_t i = first; i < end; ++i) slice.add(reader.read(runs[i]));
                           return std::move(slice).sums();
                         });
  return {origin, std::move(sums)};
}

void broadcast(const Team& team, int from, LevelRows& rows) {
  std::vector<uint8_t> bits = rows.bits(), packed = rows.packed();
  std::vector<float> scales = rows.scales();
  std::vector<uint64_t> cols{rows.cols()};
  team.broadcast(from, bits), team.broadcast(from, packed);
  team.broadcast(from, scales), team.broadcast(from, cols);
  rows = LevelRows(std::move(bits), cols.front(), packed, std::move(scales));
}

/// All ranks get what rank `from` learned, except for the metric, which they have.
void broadcast(const Team& team, int from, LearnedBasis& learned) {
  team.broadcast(from, learned.basis.mean);
  team.broadcast(from, learned.vectors);
  broadcast(team, from, learned.basis.prediction.scores);
  broadcast(team, from, learned.basis.prediction.loadings);
  team.broadcast(from, learned.variances);
  team.broadcast(from, learned.energies);
  team.broadcast(from, learned.left);
}

/// For as many parts at a time as there are ranks: all ranks add up the moments of each, then each rank solves the
/// eigenproblem of one. at_part: how many parts are done.
std::vector<LearnedBasis> bases_of(const VectorSource& source, std::span<const ErrorMetric> metrics,
                                   size_t rank, const std::function<void(double parts)>& at_part,
                                   const Team& team) {
  std::vector<LearnedBasis> learned(source.parts());
  const auto ranks = as_size(team.size());
  for (size_t first = 0; first < source.parts(); first += ranks) {
    const size_t count = std::min(ranks, source.parts() - first);
    const size_t own = first + static_cast<size_t>(team.rank());
    std::optional<CovarianceSums> moments;
    for (size_t part = first; part < first + count; ++part) {
      at_part(static_cast<double>(part));
      CovarianceSums of_part = moments_of(source, part, team);
      if (part == own) moments = std::move(of_part);
    }
    if (moments)
      learned[own] =
          learn_basis(*moments, metrics[own], rank, [&](double done, double total, std::string_view) {
            at_part(static_cast<double>(own) + done / total);
          });
    for (size_t i = 0; i < count; ++i) {
      learned[first + i].basis.metric = metrics[first + i];
      broadcast(team, static_cast<int>(i), learned[first + i]);
    }
  }
  return learned;
}

/// Every rank has written columns [bounds[rank], bounds[rank + 1]) of its matrix; afterwards all have all columns.
void gather_columns(const Team& team, Matrix<float>& matrix, std::span<const size_t> bounds) {
  for (size_t rank = 0; team.size() > 1 && rank + 1 < bounds.size(); ++rank) {
    const auto own = matrix.view().columns(bounds[rank], bounds[rank + 1] - bounds[rank]);
    Matrix<float> sent(own.rows(), own.cols());
    for (size_t i = 0; i < own.rows(); ++i) std::ranges::copy(own.row(i), sent.row(i).begin());
    team.broadcast(static_cast<int>(rank), sent);
    for (size_t i = 0; i < own.rows(); ++i) std::ranges::copy(sent.row(i), own.row(i).begin());
  }
}

/// Components of the held-out tokens: (components, tokens).
Matrix<float> sample_of(const VectorSource& source, size_t part, const TransformBasis& basis, double brought,
                        const Team& team) {
  const std::vector<TokenRun> runs = runs_of(source, true);
  std::vector<size_t> starts{0};  // of each run among the sample's tokens
  starts.reserve(runs.size() + 1);
  for (const TokenRun& run : runs) starts.push_back(starts.back() + run.count);
  Matrix<float> sample(basis.components(), starts.back());
  const Analysis analysis(basis, numbers_below<uint32_t>(basis.components()), brought);
  const Scores of_prediction(basis.prediction);
  RunRows rows(source, part);
  const TeamShare own = team.share(runs.size());
  for (size_t i = own.begin; i < own.end; ++i) {
    const size_t count = runs[i].count;
    const auto together = rows.read(runs[i]), piece = together.columns(0, source.width(part));
    const Matrix<float> scores = of_prediction.of(together.columns(piece.cols(), source.features()));
    parallel_for(count, kTokenGrain, [&](size_t begin, size_t end, int) {
      Matrix<float> centred(end - begin, piece.cols());
      for (size_t t = begin; t < end; ++t)
        for (size_t c = 0; c < piece.cols(); ++c) centred(t - begin, c) = piece(t, c) - basis.mean[c];
      Matrix<float> weighted = analysis.weighted(centred, scores.view().rows(begin, end - begin));
      analysis.apply(weighted, sample.view().columns(starts[i] + begin, end - begin));
    });
  }
  gather_columns(team, sample, team.bounds(starts));
  return sample;
}

std::vector<FirstTokens> first_tokens_of(const VectorSource& source, std::span<const TransformBasis> bases,
                                         std::span<const float> steps, const TransformTraining& training,
                                         const Team& team) {
  std::vector<FirstTokens> firsts;
  const uint64_t count = source.first_tokens();
  if (training.first_finer == 0 || count < kMinFirstTokens) return firsts;
  const TeamShare own = team.share(count);
  for (size_t part = 0; part < source.parts(); ++part) {
    Matrix<float> rows(count, source.width(part));
    source.read_first_tokens(part, own.begin, rows.view().rows(own.begin, own.count()));
    team.gather(std::span(rows.data(), rows.size()), count);
    firsts.push_back(learn_first_tokens(rows, bases[part].metric, rows.cols() / source.head_dim(part), steps,
                                        training.first_finer));
  }
  return firsts;
}

/// Drops the coarsest rungs, at which all components are dead. Throws Error(bad_input) if nothing lives at any.
void drop_silent(LearnedLevels& levels, std::vector<float>& steps) {
  const auto silent = std::ranges::find_if(levels.measures, [](const RungMeasure& m) { return m.bits > 0; }) -
                      levels.measures.begin();
  if (silent == std::ssize(levels.measures))
    throw bad_input("all components take 0 bits at every step; take a larger --most-bits");
  const auto drop = [&](auto& list) { list.erase(list.begin(), list.begin() + silent); };
  drop(levels.measures), drop(steps);
  for (std::vector<LevelRung>& of_part : levels.rungs) drop(of_part);
}

/// Drops components that are dead at every step, wherever they stand: rounding can misplace components of small variance.
void drop_dead(TransformBasis& basis, std::vector<LevelRung>& rungs) {
  std::vector<uint32_t> kept;
  for (uint32_t i = 0; i < basis.components(); ++i)
    if (std::ranges::any_of(rungs, [&](const LevelRung& rung) { return rung.classes[i] != kDeadClass; }))
      kept.push_back(i);
  basis.vectors.keep(kept);
  for (LevelRung& rung : rungs) {
    for (size_t i = 0; i < kept.size(); ++i)
      rung.classes[i] = rung.classes[kept[i]], rung.gains[i] = rung.gains[kept[i]];
    rung.classes.resize(kept.size()), rung.gains.resize(kept.size());
  }
}

}  // namespace

LearnedTransform learn_transform(const VectorSource& source, std::span<const ErrorMetric> metrics,
                                 const TransformTraining& training, const Progress& progress,
                                 const Team& team) {
  if (source.tokens() < kMinTokens)
    throw bad_input("{} tokens; a transform is learned from {} and more, better from 100,000",
                    source.tokens(), kMinTokens);
  if (metrics.size() != source.parts())
    throw failed("metrics of {} parts of {}", metrics.size(), source.parts());
  // Bases take most of the time, samples and levels the rest.
  const double parts = static_cast<double>(source.parts()), all = 2 * parts + 1;
  LearnedTransform result;
  for (size_t part = 0; part < source.parts(); ++part)
    result.values += static_cast<double>(source.width(part));
  std::vector<LearnedBasis> learned = bases_of(
      source, metrics, training.rank, [&](double done) { report(progress, done, all, "bases"); }, team);
  const double coarsest = step_for(learned, training.least_bits * result.values),
               finest = step_for(learned, training.max_bits * result.values);
  std::vector<float> steps = ladder(coarsest, finest);
  std::vector<Matrix<float>> samples;
  for (size_t part = 0; part < source.parts(); ++part) {
    report(progress, parts + static_cast<double>(part), all, "samples");
    LearnedBasis& of_part = learned[part];
    const double least = kMinDeviation * finest;
    const auto kept = std::ranges::find_if(of_part.variances, [&](double v) { return v < least * least; });
    const auto count = static_cast<size_t>(kept - of_part.variances.begin());
    result.energies.push_back(std::move(of_part.energies));
    result.left.push_back(std::move(of_part.left));
    result.bases.push_back(
        basis_of_first(std::move(of_part), count, training.vector_error * finest * finest / 12));
    samples.push_back(
        sample_of(source, part, result.bases.back(), brought_at(training.vector_error, 1, 1), team));
  }
  report(progress, 2 * parts, all, "levels");
  result.levels = learn_levels(samples, steps, training.levels, {}, team);
  drop_silent(result.levels, steps);
  for (RungMeasure& measure : result.levels.measures) measure.bits /= result.values;
  for (size_t part = 0; part < source.parts(); ++part)
    drop_dead(result.bases[part], result.levels.rungs[part]);
  result.firsts = first_tokens_of(source, result.bases, steps, training, team);
  report(progress, all, all);
  return result;
}

uint64_t learn_transform_bytes(std::span<const size_t> widths, uint64_t features, uint64_t tokens) {
  const uint64_t widest = std::ranges::max(widths) + features, square = widest * widest;
  uint64_t samples = 0;
  for (const uint64_t width : widths)
    samples += width * (width + std::min<uint64_t>(kMaxSampled, tokens)) * sizeof(float);
  // The weighted covariance of one part (sums, covariance, two products; the sums of slices before it and the eigenproblem
  // behind it take less), then vectors and samples of all.
  return 4 * square * sizeof(double) + samples;
}

}  // namespace kvcodec
