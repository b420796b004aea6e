#include "lib/transform/adaptation.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/transform/level_coder.hpp"

namespace kvcodec {
namespace {

constexpr size_t kComponentGrain = 32;
/// If a larger fraction of a component's values lies in the outermost bins, its class follows from their mean size alone.
constexpr double kMostBeyond = 0.01;
/// A component keeps what the book says unless a change saves so many bits: its entry would take about as many.
constexpr double kLeastSaved = 4;
/// What a bit is worth, in squared steps, between coding a component and dropping it.
constexpr double kBitWorth = 0.12;
constexpr int kRounds = 2;
constexpr size_t kRows = 3;
/// Gains are 1 to 3.
constexpr int kMostGainChange = 2 * kGainsPerUnit;

/// The class as a number for differences: -1 for dead ones.
int number_of(uint8_t level_class) { return level_class == kDeadClass ? -1 : level_class; }

uint8_t class_of_row(std::span<const int32_t> levels) {
  double sum = 0;
  for (const int32_t level : levels) sum += std::abs(level);
  const uint8_t level_class =
      class_of_mean_level(sum / std::max<double>(1, static_cast<double>(levels.size())));
  return level_class == kDeadClass ? 0 : level_class;
}

/// For values of 0, 1, 2 … quarters of a step, quantized in one class: sizes, the values in steps; their levels; back, what
/// these stand for in steps, without a gain; and their bits.
struct Quantized {
  std::vector<int32_t> levels;
  std::vector<float> sizes, back, bits;
};

Quantized quantized(const LevelTables& tables, uint8_t level_class, size_t values) {
  Quantized result{std::vector<int32_t>(values), std::vector<float>(values), std::vector<float>(values),
                   std::vector<float>(values)};
  for (size_t i = 0; i < values; ++i)
    result.sizes[i] = static_cast<float>(i) / static_cast<float>(kOffsetsPerStep);
  if (level_class == kDeadClass) return result;
  tables.quantize(level_class, 1, result.sizes, result.levels);
  tables.reconstruct(level_class, 1, 1, result.levels, result.back);
  tables.add_bits(level_class, result.levels, result.bits);
  return result;
}

}  // namespace

std::vector<uint8_t> write_adaptation(const Adaptation& adaptation, const LevelTables& tables,
                                      std::span<const uint8_t> rung_classes) {
  const size_t components = rung_classes.size();
  if (adaptation.classes.size() != components || adaptation.offsets.size() != components ||
      adaptation.gain_changes.size() != components)
    throw failed("an adaptation of {} components, not {}", adaptation.classes.size(), components);
  Matrix<int32_t> levels(kRows, components);
  for (size_t i = 0; i < components; ++i)
    levels(0, i) = number_of(adaptation.classes[i]) - number_of(rung_classes[i]);
  std::ranges::copy(adaptation.offsets, levels.row(1).begin());
  std::ranges::copy(adaptation.gain_changes, levels.row(2).begin());
  std::vector<uint8_t> bytes;
  for (size_t row = 0; row < kRows; ++row) bytes.push_back(class_of_row(levels.row(row)));
  LevelCoder(tables, bytes).encode(levels, bytes);
  return bytes;
}

Adaptation read_adaptation(std::span<const uint8_t> bytes, const LevelTables& tables,
                           std::span<const uint8_t> rung_classes) {
  const auto heads = bytes.first(std::min(kRows, bytes.size()));
  if (heads.size() < kRows || *std::ranges::max_element(heads) >= kLevelClasses)
    throw bad_input("an adaptation of {} bytes; it begins with {} classes below {}", bytes.size(), kRows,
                    kLevelClasses);
  const size_t components = rung_classes.size();
  Matrix<int32_t> levels(kRows, components);
  const auto block = bytes.subspan(kRows);
  const auto size = static_cast<uint32_t>(block.size());
  LevelCoder(tables, {heads.begin(), heads.end()}).decode(block, {&size, 1}, components, levels);
  Adaptation adaptation;
  for (size_t i = 0; i < components; ++i) {
    const int number = levels(0, i) + number_of(rung_classes[i]);
    if (number < -1 || number >= static_cast<int>(kLevelClasses))
      throw bad_input("component {} has class {}; there are {}", i, number, kLevelClasses);
    adaptation.classes.push_back(number < 0 ? kDeadClass : static_cast<uint8_t>(number));
    if (std::abs(levels(2, i)) > kMostGainChange)
      throw bad_input("component {} has a gain changed by {}; at most {}", i, levels(2, i), kMostGainChange);
  }
  adaptation.offsets.assign(levels.row(1).begin(), levels.row(1).end());
  adaptation.gain_changes.assign(levels.row(2).begin(), levels.row(2).end());
  return adaptation;
}

AdaptationSurvey::AdaptationSurvey(const LevelTables& tables, const LevelRung& rung, size_t components,
                                   double unbias)
    : tables_(tables), rung_(rung), sums_(components), counts_(components, kBins), unbias_(unbias) {
  if (components > rung.classes.size())
    throw failed("a survey of {} components; there are {}", components, rung.classes.size());
}

void AdaptationSurvey::add(MatrixView<const float> values, std::span<const uint32_t> weights) {
  if (values.rows() != components() || values.cols() != weights.size())
    throw failed("{} components of {} tokens, and {} weights, for a survey of {}", values.rows(),
                 values.cols(), weights.size(), components());
  const double inverse = 1 / static_cast<double>(rung_.step);
  parallel_for(components(), kComponentGrain, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i)
      for (size_t t = 0; t < weights.size(); ++t) {
        const double steps = static_cast<double>(values(i, t)) * inverse;
        // Of such a token no level is stored: it is kept exactly.
        if (!std::isfinite(steps)) {
          counts_(i, 2 * kMostCounted) += weights[t];
          continue;
        }
        const double bin =
            std::clamp(std::round(steps * kOffsetsPerStep), -1.0 * kMostCounted, 1.0 * kMostCounted);
        counts_(i, static_cast<size_t>(bin + kMostCounted)) += weights[t];
        sums_[i].value += weights[t] * steps;
        sums_[i].size += weights[t] * std::abs(steps);
      }
  });
  for (const uint32_t weight : weights) tokens_ += weight;
}

AdaptationSurvey::Fit AdaptationSurvey::fit(size_t component) const {
  const auto tokens = static_cast<double>(tokens_);
  const auto counts = counts_.view().row(component);
  const Sums& sums = sums_[component];
  const uint8_t before = rung_.classes[component];
  if (counts.front() + counts.back() > kMostBeyond * tokens) {
    const uint8_t level_class = class_of_mean_level(sums.size / tokens);  // not dead: many are large
    // What other tables save is not known here. If the class changes, a tenth of a bit per token is assumed.
    return {level_class, 0, 0, level_class == before ? 0 : tokens / 10};
  }
  const auto offset = static_cast<int32_t>(std::lround(sums.value / tokens * kOffsetsPerStep));
  // The sum over all tokens of of_distance(distance of the token's bin from bin `from`).
  const auto sum_of = [&](int32_t from, const auto& of_distance) {
    double sum = 0;
    for (size_t bin = 0; bin < kBins; ++bin)
      if (counts[bin] > 0) {
        const int32_t distance = std::abs(static_cast<int32_t>(bin) - kMostCounted - from);
        sum +=
            counts[bin] *
            static_cast<double>(of_distance(std::min<size_t>(static_cast<size_t>(distance), kDistances - 1)));
      }
    return sum;
  };
  // As training finds classes: by rounding first, then by the tables of the class that came out.
  uint8_t level_class = class_of_mean_level(
      sum_of(offset, [](size_t i) { return std::round(static_cast<double>(i) / kOffsetsPerStep); }) / tokens);
  Quantized own;
  for (int round = 0; round <= kRounds && level_class != kDeadClass; ++round) {
    own = quantized(tables_, level_class, kDistances);
    if (round < kRounds)
      level_class = class_of_mean_level(sum_of(offset, [&](size_t i) { return own.levels[i]; }) / tokens);
  }
  if (level_class == kDeadClass) {
    // A component that lives by the book stays alive, at next to no bits: dead, it would be lost to a token unlike others.
    if (before != kDeadClass) level_class = 0;
    own = quantized(tables_, level_class, kDistances);
  }
  const auto product_of = [&](const std::vector<float>& a, const std::vector<float>& b) {
    return sum_of(offset, [&](size_t i) { return static_cast<double>(a[i]) * static_cast<double>(b[i]); });
  };
  const double gain =
      unbiasing_gain(product_of(own.sizes, own.sizes), product_of(own.sizes, own.back), unbias_);
  const auto of_book = static_cast<double>(rung_.gains[component]);
  const int change = level_class == kDeadClass
                         ? 0
                         : std::clamp(static_cast<int>(std::lround((gain - of_book) * kGainsPerUnit)),
                                      -kMostGainChange, kMostGainChange);
  // Errors, squared, and bits at their worth.
  const auto cost_of = [&](const Quantized& values, double by, int32_t from) {
    return sum_of(from, [&](size_t i) {
      const double error = static_cast<double>(values.sizes[i]) - by * static_cast<double>(values.back[i]);
      return error * error + kBitWorth * static_cast<double>(values.bits[i]);
    });
  };
  const double saved = cost_of(quantized(tables_, before, kDistances), of_book, 0) -
                       cost_of(own, of_book + static_cast<double>(change) / kGainsPerUnit, offset);
  return {level_class, offset, change, saved / kBitWorth};
}

std::optional<Adaptation> AdaptationSurvey::finish() const {
  if (tokens_ == 0) return {};
  std::vector<Fit> fits(components());
  parallel_for(components(), kComponentGrain, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) fits[i] = fit(i);
  });
  const std::vector<int32_t> zeros(rung_.classes.size(), 0);
  Adaptation adaptation{rung_.classes, zeros, zeros};
  double saved = 0;
  for (size_t i = 0; i < fits.size(); ++i) {
    if (fits[i].saved < kLeastSaved) continue;
    adaptation.classes[i] = fits[i].level_class;
    adaptation.offsets[i] = fits[i].offset;
    adaptation.gain_changes[i] = fits[i].gain_change;
    saved += fits[i].saved;
  }
  const size_t bytes = write_adaptation(adaptation, tables_, rung_.classes).size();
  if (saved <= 8 * static_cast<double>(bytes)) return {};
  return adaptation;
}

}  // namespace kvcodec
