#include "lib/transform/codec/part.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec {
namespace {

/// Tokens rebuilt together, blocks that are decoded together by default: enough to pay for reading the basis.
constexpr size_t kRebuilt = 1024;

/// Calls body(tile, begin, end) for each tile that holds some of tokens [first, first + count) of a block, on several threads: `tile` is the
/// tile's first token, [begin, end) are those of its tokens that are among them.
template <class Body>
void for_each_tile(size_t first, size_t count, const Body& body) {
  constexpr size_t kTile = TransformPart::kTile;
  const size_t start = first / kTile, tiles = count == 0 ? 0 : (first + count - 1) / kTile + 1 - start;
  parallel_each(tiles, 1, [&](size_t i) {
    const size_t tile = (start + i) * kTile;
    body(tile, std::max(tile, first), std::min(tile + kTile, first + count));
  });
}

template <class T>
std::vector<T> chosen(const std::vector<T>& all, const std::vector<uint32_t>& components) {
  std::vector<T> values;
  values.reserve(components.size());
  for (const uint32_t component : components) values.push_back(all[component]);
  return values;
}

size_t end_of_live(const LevelRung& rung) {
  const std::vector<uint32_t> live = rung.live();
  return live.empty() ? 0 : live.back() + 1;
}

/// The end of the components that were alive, in training, at a step half as large: a text's variances may be four times
/// those of the training data.
size_t surveyed_of(const std::vector<LevelRung>& rungs, size_t rung) {
  const float half = rungs[rung].step / 2;
  size_t finer = rung;
  while (finer + 1 < rungs.size() && rungs[finer].step > half * 1.01f) ++finer;
  return std::max(end_of_live(rungs[finer]), end_of_live(rungs[rung]));
}

}  // namespace

TransformPart::TransformPart(TransformBook::Part part, size_t rung, const PartContext& context)
    : TransformPart(std::make_shared<const TransformBasis>(std::move(part.basis)), {}, part.rungs[rung],
                    surveyed_of(part.rungs, rung), context) {
  mean_ = basis_->mean;
  if (context.first_finer > 0)
    first_.emplace(basis_->metric, context.tables, std::move(part.first.mean), part.first.classes[rung],
                   rung_.step, context.first_finer);
}

TransformPart::TransformPart(std::shared_ptr<const TransformBasis> basis, std::vector<float> mean,
                             LevelRung rung, size_t surveyed, const PartContext& context)
    : basis_(std::move(basis)),
      mean_(std::move(mean)),
      rung_(std::move(rung)),
      surveyed_(surveyed),
      context_(context),
      live_(rung_.live()),
      coder_(context.tables, chosen(rung_.classes, live_)),
      classes_(chosen(rung_.classes, live_)),
      gains_(chosen(rung_.gains, live_)) {}

std::shared_ptr<const TransformPart> TransformPart::adapted(const Adaptation& adaptation) const {
  LevelRung rung = rung_;
  rung.classes = adaptation.classes;
  for (size_t i = 0; i < rung.gains.size(); ++i) {
    rung.gains[i] += static_cast<float>(adaptation.gain_changes[i]) / static_cast<float>(kGainsPerUnit);
    if (!(rung.gains[i] > 0)) throw bad_input("component {} has a gain of {}", i, rung.gains[i]);
  }
  const std::shared_ptr<TransformPart> result(
      new TransformPart(basis_, shifted_mean(adaptation), std::move(rung), surveyed_, context_));
  if (first_) result->first_.emplace(*first_);
  return result;
}

/// The mean plus the synthesis of the components' offsets.
std::vector<float> TransformPart::shifted_mean(const Adaptation& adaptation) const {
  std::vector<double> sums(width(), 0.0);
  std::vector<float> vector(width());
  const double unit = static_cast<double>(rung_.step) / kOffsetsPerStep;
  for (size_t i = 0; i < adaptation.offsets.size(); ++i) {
    if (adaptation.offsets[i] == 0) continue;
    const double offset = adaptation.offsets[i] * unit;
    row_floats(basis_->vectors, i, vector);
    for (size_t c = 0; c < width(); ++c) sums[c] += offset * static_cast<double>(vector[c]);
  }
  Matrix<float> weighted(1, width());
  for (size_t c = 0; c < width(); ++c) weighted(0, c) = static_cast<float>(sums[c]);
  const Matrix<float> shift = basis_->metric.times_inverse_root(weighted);
  std::vector<float> mean = mean_;
  for (size_t c = 0; c < width(); ++c) mean[c] += shift(0, c);
  return mean;
}

const SynthesisFunction* TransformPart::device() const {
  if (!context_.engine) return nullptr;
  if (context_.features) {
    context_.engine->fall_back("transform: vectors predicted from ids");
    return nullptr;
  }
  const SynthesisFunction& made = device_.get([&] {
    return context_.engine->make<SynthesisOnDevice>(SynthesisTask{.tables = context_.tables,
                                                                  .classes = classes_,
                                                                  .gains = gains_,
                                                                  .step = rung_.step,
                                                                  .rows = basis_->synthesis(live_),
                                                                  .mean = mean_});
  });
  return made ? &made : nullptr;
}

std::vector<uint32_t> TransformPart::ids(const StreamReader& document, uint64_t first, uint64_t count) const {
  if (!context_.features) return {};
  return ids_with_lags([&](uint64_t from, uint64_t n) { return document.token_ids(from, n); }, first, count,
                       context_.features->lags());
}

void TransformPart::quantize(size_t first, std::span<const uint32_t> ids, MatrixView<const float> rows,
                             MatrixView<int32_t> levels, std::span<double> errors) const {
  const Analysis& analysis = analysis_.get([&] { return Analysis(*basis_, live_, true); });
  for_each_tile(first, rows.rows(), [&](size_t tile, size_t begin, size_t end) {
    Matrix<float> centred(kTile, width()), components(this->components(), kTile);
    for (size_t t = begin; t < end; ++t)
      for (size_t c = 0; c < width(); ++c) centred(t - tile, c) = rows(t - first, c) - mean_[c];
    const Matrix<float> some = scores(ids.subspan(context_.features ? begin - first : 0), end - begin);
    Matrix<float> placed(kTile, some.cols());
    std::copy_n(some.data(), some.size(), placed.data() + (begin - tile) * some.cols());
    analysis.apply(0, centred, placed, components);
    const std::vector<size_t> beyond = take_out_beyond(components, begin - tile, end - begin);
    for (size_t i = 0; i < this->components(); ++i)
      context_.tables.quantize(classes_[i], rung_.step, components.row(i).subspan(begin - tile, end - begin),
                               levels.row(i).subspan(begin - first, end - begin));
    add_errors(components, levels.columns(begin - first, end - begin), begin - tile, centred, placed,
               errors.subspan(begin - first, end - begin));
    for (const size_t t : beyond)
      errors[begin - first + t] = std::numeric_limits<double>::infinity();  // is kept exactly
  });
}

/// The tokens among [begin, begin + count) of a tile with a component too large to be given a level, counted from `begin`.
/// Such components become 0.
std::vector<size_t> TransformPart::take_out_beyond(MatrixView<float> components, size_t begin,
                                                   size_t count) const {
  const float limit = rung_.step * kMaxSteps;
  std::vector<size_t> tokens;
  for (size_t t = 0; t < count; ++t) {
    bool any = false;
    for (size_t i = 0; i < components.rows(); ++i) {
      float& component = components(i, begin + t);
      if (std::abs(component) < limit) continue;
      component = 0;
      any = true;
    }
    if (any) tokens.push_back(t);
  }
  return tokens;
}

/// Errors of a tile's tokens from `begin` on, whose levels these are. centred, scores: of the whole tile; centred is overwritten.
void TransformPart::add_errors(MatrixView<const float> components, MatrixView<const int32_t> levels,
                               size_t begin, MatrixView<float> centred, MatrixView<const float> scores,
                               std::span<double> errors) const {
  if (scores.cols() > 0)
    gemm(-1, scores, loadings_.get([&] { return floats_of(basis_->prediction.loadings); }), 1, centred);
  // The error is computed from what components leave of themselves, and what lies in none, as if the basis were orthonormal: to a hundredth of its
  // rows' length, which bytes cost it.
  const Matrix<float> weighted = basis_->metric.times_root(centred);
  for (size_t t = 0; t < errors.size(); ++t) {
    errors[t] = 0;
    for (const float value : weighted.row(begin + t)) errors[t] += double{value} * double{value};
  }
  std::vector<float> values(errors.size());
  for (size_t i = 0; i < this->components(); ++i) {
    context_.tables.reconstruct(classes_[i], rung_.step, gains_[i], levels.row(i), values);
    for (size_t t = 0; t < errors.size(); ++t) {
      const double component = double{components(i, begin + t)}, left = component - double{values[t]};
      errors[t] += left * left - component * component;
    }
  }
  const double squared_step = double{rung_.step} * double{rung_.step};
  for (double& error : errors) error = std::max(error, 0.0) / squared_step;
}

std::vector<size_t> TransformPart::costly(MatrixView<const int32_t> levels,
                                          std::span<const double> errors) const {
  std::vector<float> bits(levels.cols());
  for (size_t i = 0; i < components(); ++i) context_.tables.add_bits(classes_[i], levels.row(i), bits);
  std::vector<size_t> tokens;
  for (size_t t = 0; t < bits.size(); ++t)
    if (!context_.tables.better_coded(errors[t], double{bits[t]}, width())) tokens.push_back(t);
  return tokens;
}

void TransformPart::reconstruct(MatrixView<const int32_t> levels, std::span<const uint32_t> ids,
                                MatrixView<float> rows) const {
  const Synthesis& synthesis = synthesis_.get([&] { return Synthesis(*basis_, mean_, live_); });
  for (size_t begin = 0; begin < rows.rows(); begin += kRebuilt) {
    const size_t count = std::min(kRebuilt, rows.rows() - begin);
    RowCoefficients coefficients = synthesis.coefficients(count);
    std::vector<float> values(count);
    for (size_t i = 0; i < components(); ++i) {
      context_.tables.reconstruct(classes_[i], rung_.step, gains_[i], levels.row(i).subspan(begin, count),
                                  values);
      coefficients.append_row(values);
    }
    const Matrix<float> of_tokens = scores(ids.subspan(context_.features ? begin : 0), count);
    for (size_t k = 0; k < of_tokens.cols(); ++k) {
      for (size_t t = 0; t < count; ++t) values[t] = of_tokens(t, k);
      coefficients.append_row(values);
    }
    synthesis.apply(coefficients, rows.rows(begin, count));
  }
}

/// The prediction's scores of the first `tokens` tokens that ids() gave `ids` for: (tokens, rank).
Matrix<float> TransformPart::scores(std::span<const uint32_t> ids, size_t tokens) const {
  if (!context_.features) return {};
  Matrix<float> features(tokens, context_.features->width());
  context_.features->gather(ids.first(tokens + context_.features->lags() - 1), features);
  return scores_.get([&] { return Scores(basis_->prediction); }).of(features);
}

}  // namespace kvcodec
