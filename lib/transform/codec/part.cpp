#include "lib/transform/codec/part.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/mapped.hpp"
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
  return mapped<T>(components, [&](uint32_t component) { return all[component]; });
}

/// out[i] = row[tokens[i]].
template <class T>
void gather(std::span<const T> row, const std::vector<size_t>& tokens, std::span<T> out) {
  for (size_t t = 0; t < tokens.size(); ++t) out[t] = row[tokens[t]];
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

TransformPart::TransformPart(TransformBook::Part part, const RungRange& range, const PartContext& context)
    : TransformPart(std::make_shared<const TransformBasis>(std::move(part.basis)), {},
                    {part.rungs.begin() + static_cast<ptrdiff_t>(range.first),
                     part.rungs.begin() + static_cast<ptrdiff_t>(range.end)},
                    range.own - range.first, surveyed_of(part.rungs, range.own), context) {
  mean_ = basis_->mean;
  if (context.first_finer > 0)
    first_.emplace(basis_->metric, context.tables, std::move(part.first.mean), part.first.classes[range.own],
                   rung().step, context.first_finer);
}

TransformPart::TransformPart(std::shared_ptr<const TransformBasis> basis, std::vector<float> mean,
                             std::vector<LevelRung> rungs, size_t own, size_t surveyed,
                             const PartContext& context)
    : basis_(std::move(basis)), mean_(std::move(mean)), own_(own), surveyed_(surveyed), context_(context) {
  for (uint32_t i = 0; i < basis_->components(); ++i)
    if (std::ranges::any_of(rungs, [&](const LevelRung& rung) { return rung.classes[i] != kDeadClass; }))
      live_.push_back(i);
  for (const LevelRung& rung : rungs) {
    const std::vector<uint32_t> live = rung.live();
    std::vector<size_t> rows;
    rows.reserve(live.size());
    for (const uint32_t component : live)
      rows.push_back(static_cast<size_t>(std::ranges::lower_bound(live_, component) - live_.begin()));
    const std::vector<uint8_t> classes = chosen(rung.classes, live);
    rungs_.push_back({rung, std::move(rows), classes, chosen(rung.gains, live), {context.tables, classes}});
  }
}

std::shared_ptr<const TransformPart> TransformPart::adapted(const Adaptation& adaptation) const {
  LevelRung own = rung();
  own.classes = adaptation.classes;
  for (size_t i = 0; i < own.gains.size(); ++i) {
    own.gains[i] += static_cast<float>(adaptation.gain_changes[i]) / static_cast<float>(kGainsPerUnit);
    if (!(own.gains[i] > 0)) throw bad_input("component {} has a gain of {}", i, own.gains[i]);
  }
  std::vector<LevelRung> rungs;
  for (const Rung& other : rungs_) rungs.push_back(changed_alike(other.rung, rung(), adaptation));
  rungs[own_] = std::move(own);
  const std::shared_ptr<TransformPart> result(
      new TransformPart(basis_, shifted_mean(adaptation), std::move(rungs), own_, surveyed_, context_));
  if (first_) result->first_.emplace(*first_);
  return result;
}

/// The mean plus the synthesis of the components' offsets.
std::vector<float> TransformPart::shifted_mean(const Adaptation& adaptation) const {
  std::vector<double> sums(width(), 0.0);
  std::vector<float> vector(width());
  const double unit = static_cast<double>(rung().step) / kOffsetsPerStep;
  for (size_t i = 0; i < adaptation.offsets.size(); ++i) {
    if (adaptation.offsets[i] == 0) continue;
    const double offset = adaptation.offsets[i] * unit;
    basis_->vectors.floats(i, vector);
    for (size_t c = 0; c < width(); ++c) sums[c] += offset * static_cast<double>(vector[c]);
  }
  Matrix<float> weighted(1, width());
  for (size_t c = 0; c < width(); ++c) weighted(0, c) = static_cast<float>(sums[c]);
  const Matrix<float> shift = basis_->metric.times_inverse_root(weighted);
  std::vector<float> mean = mean_;
  for (size_t c = 0; c < width(); ++c) mean[c] += shift(0, c);
  return mean;
}

uint8_t TransformPart::rung_for(double weight, double power) const {
  const double wanted = std::log(rung().step) - power / 2 * std::log(weight);
  const auto distance = [&](const Rung& rung) { return std::abs(std::log(rung.rung.step) - wanted); };
  return static_cast<uint8_t>(std::ranges::min_element(rungs_, {}, distance) - rungs_.begin());
}

const SynthesisFunction* TransformPart::device() const {
  if (!context_.engine) return nullptr;
  if (rungs_.size() > 1 || context_.features) {
    context_.engine->fall_back(rungs_.size() > 1 ? "transform: tokens with steps of their own"
                                                 : "transform: vectors predicted from ids");
    return nullptr;
  }
  const SynthesisFunction& made = device_.get([&] {
    return context_.engine->make<SynthesisOnDevice>(SynthesisTask{.tables = context_.tables,
                                                                  .classes = rungs_[own_].classes,
                                                                  .gains = rungs_[own_].gains,
                                                                  .step = rung().step,
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

/// Tokens 0, 1 … by their rungs, the coarsest first.
std::vector<TransformPart::Alike> TransformPart::by_rung(TokenRungs rungs, size_t tokens) const {
  std::vector<Alike> groups;
  for (size_t rung = 0; rung < rungs_.size(); ++rung) {
    std::vector<size_t> own;
    for (size_t t = 0; t < tokens; ++t)
      if ((rungs.empty() ? own_ : rungs[t]) == rung) own.push_back(t);
    if (!own.empty()) groups.push_back({rungs_[rung], std::move(own)});
  }
  return groups;
}

uint32_t TransformPart::encode(MatrixView<const int32_t> levels, TokenRungs rungs,
                               std::vector<uint8_t>& out) const {
  if (rungs.empty()) return rungs_[own_].coder.encode(levels, out);
  const std::vector<Alike> groups = by_rung(rungs, levels.cols());
  std::vector<uint32_t> sizes;
  std::vector<uint8_t> coded;
  for (const auto& [at, tokens] : groups) {
    Matrix<int32_t> own(at.rows.size(), tokens.size());
    for (size_t i = 0; i < own.rows(); ++i) gather<int32_t>(levels.row(at.rows[i]), tokens, own.row(i));
    sizes.push_back(at.coder.encode(own, coded));
  }
  sizes.pop_back();
  const auto heads = std::as_bytes(std::span(sizes));
  for (const std::byte byte : heads) out.push_back(static_cast<uint8_t>(byte));
  append_to(out, coded);
  return static_cast<uint32_t>(heads.size() + coded.size());
}

void TransformPart::decode(std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes,
                           size_t tokens, TokenRungs rungs, MatrixView<int32_t> levels) const {
  if (rungs.empty()) return rungs_[own_].coder.decode(payload, block_bytes, tokens, levels);
  for (size_t b = 0; b < block_bytes.size(); ++b) {
    std::span<const uint8_t> left = payload.first(block_bytes[b]);
    payload = payload.subspan(left.size());
    const std::vector<Alike> groups = by_rung(rungs.subspan(b * tokens, tokens), tokens);
    std::vector<uint32_t> sizes(groups.size() - 1);
    if (left.size() < sizes.size() * sizeof(uint32_t))
      throw bad_input("a block of {} bytes; it begins with the sizes of {} rungs", left.size(), sizes.size());
    std::memcpy(sizes.data(), left.data(), sizes.size() * sizeof(uint32_t));
    left = left.subspan(sizes.size() * sizeof(uint32_t));
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto& [at, of_rung] = groups[g];
      const uint32_t size = g < sizes.size() ? sizes[g] : static_cast<uint32_t>(left.size());
      if (size > left.size())
        throw bad_input("the tokens of a rung take {} bytes; their block has {} left", size, left.size());
      Matrix<int32_t> own(at.rows.size(), of_rung.size());
      at.coder.decode(left.first(size), {&size, 1}, own.cols(), own);
      left = left.subspan(size);
      for (size_t i = 0; i < own.rows(); ++i)
        for (size_t t = 0; t < own.cols(); ++t) levels(at.rows[i], b * tokens + of_rung[t]) = own(i, t);
    }
  }
}

void TransformPart::quantize(size_t first, std::span<const uint32_t> ids, MatrixView<const float> rows,
                             TokenRungs rungs, MatrixView<int32_t> levels, std::span<double> errors) const {
  const Analysis& analysis = analysis_.get([&] { return this->analysis(live_); });
  for_each_tile(first, rows.rows(), [&](size_t tile, size_t begin, size_t end) {
    Matrix<float> centred(kTile, width()), components(this->components(), kTile);
    for (size_t t = begin; t < end; ++t)
      for (size_t c = 0; c < width(); ++c) centred(t - tile, c) = rows(t - first, c) - mean_[c];
    const size_t at = begin - first, count = end - begin;
    const Matrix<float> some = scores(ids.subspan(context_.features ? at : 0), count);
    Matrix<float> placed(kTile, some.cols());
    std::copy_n(some.data(), some.size(), placed.data() + (begin - tile) * some.cols());
    Matrix<float> weighted = analysis.weighted(centred, placed);
    // The error is computed from what components leave of themselves, and what lies in none, as if the basis were orthonormal.
    for (size_t t = 0; t < count; ++t) {
      errors[at + t] = 0;
      for (const float value : weighted.row(begin - tile + t))
        errors[at + t] += double{value} * double{value};
    }
    analysis.apply(weighted, components);
    for (const Alike& alike : by_rung(some_of(rungs, at, count), count))
      quantize(alike, components.view().columns(begin - tile, count), levels.columns(at, count),
               errors.subspan(at, count));
  });
}

/// Levels of tokens of one rung. errors: the squared lengths of the tokens' vectors, then their errors.
void TransformPart::quantize(const Alike& some, MatrixView<const float> components,
                             MatrixView<int32_t> levels, std::span<double> errors) const {
  const auto& [at, tokens] = some;
  const float step = at.rung.step, limit = step * kMaxSteps;
  std::vector<float> values(tokens.size()), back(tokens.size());
  std::vector<int32_t> own(tokens.size());
  std::vector<bool> beyond(tokens.size());
  for (size_t i = 0; i < at.rows.size(); ++i) {
    gather<float>(components.row(at.rows[i]), tokens, values);
    for (size_t t = 0; t < tokens.size(); ++t)
      if (!(std::abs(values[t]) < limit)) values[t] = 0, beyond[t] = true;
    context_.tables.quantize(at.classes[i], step, values, own);
    context_.tables.reconstruct(at.classes[i], step, at.gains[i], own, back);
    for (size_t t = 0; t < tokens.size(); ++t) {
      levels(at.rows[i], tokens[t]) = own[t];
      const double component = double{values[t]}, left = component - double{back[t]};
      errors[tokens[t]] += left * left - component * component;
    }
  }
  for (size_t t = 0; t < tokens.size(); ++t)
    errors[tokens[t]] = beyond[t] ? std::numeric_limits<double>::infinity()  // is kept exactly
                                  : std::max(errors[tokens[t]], 0.0) / (double{step} * double{step});
}

std::vector<size_t> TransformPart::costly(MatrixView<const int32_t> levels, TokenRungs rungs,
                                          std::span<const double> errors) const {
  std::vector<size_t> costly;
  for (const auto& [at, tokens] : by_rung(rungs, levels.cols())) {
    std::vector<float> bits(tokens.size());
    std::vector<int32_t> own(tokens.size());
    for (size_t i = 0; i < at.rows.size(); ++i) {
      gather<int32_t>(levels.row(at.rows[i]), tokens, own);
      context_.tables.add_bits(at.classes[i], own, bits);
    }
    for (size_t t = 0; t < tokens.size(); ++t)
      if (!context_.tables.better_coded(errors[tokens[t]], double{bits[t]}, width()))
        costly.push_back(tokens[t]);
  }
  std::ranges::sort(costly);
  return costly;
}

void TransformPart::reconstruct(MatrixView<const int32_t> levels, std::span<const uint32_t> ids,
                                TokenRungs rungs, MatrixView<float> rows) const {
  const Synthesis& synthesis = synthesis_.get([&] { return Synthesis(*basis_, mean_, live_); });
  for (size_t begin = 0; begin < rows.rows(); begin += kRebuilt) {
    const size_t count = std::min(kRebuilt, rows.rows() - begin);
    RowCoefficients coefficients = synthesis.coefficients(count);
    std::vector<float> values(count), back(count);
    std::vector<int32_t> own(count);
    const std::vector<Alike> groups = by_rung(some_of(rungs, begin, count), count);
    std::vector<size_t> next(groups.size());  // of the components of each rung
    for (size_t i = 0; i < components(); ++i) {
      std::ranges::fill(values, 0.0f);
      for (size_t g = 0; g < groups.size(); ++g) {
        const auto& [at, tokens] = groups[g];
        if (next[g] == at.rows.size() || at.rows[next[g]] != i) continue;
        const size_t component = next[g]++;
        gather<int32_t>(levels.row(i).subspan(begin, count), tokens, own);
        context_.tables.reconstruct(at.classes[component], at.rung.step, at.gains[component],
                                    std::span(own).first(tokens.size()),
                                    std::span(back).first(tokens.size()));
        for (size_t t = 0; t < tokens.size(); ++t) values[tokens[t]] = back[t];
      }
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
