#include "lib/transform/adaptation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

constexpr size_t kComponentGrain = 32, kTokenGrain = 64;
/// A component keeps what the book says unless a change saves so many bits: its entry would take about as many.
constexpr double kLeastSaved = 4;
/// One of many ways to code a component seems to save by chance: so many bits per token.
constexpr double kByChance = 0.03;
/// The worth of a bit, in squared steps, between coding a component and dropping it.
constexpr double kBitWorth = 0.12;
constexpr int kRounds = 2;
constexpr size_t kRows = 3;
/// Gains are 1 to 3.
constexpr int kMaxGainChange = 2 * kGainsPerUnit;

/// A histogram's bins on either side of 0: quarters of a step, then quarters of an octave up to kMaxSteps.
constexpr int kFineBins = 64, kLoudBinsPerOctave = 4, kLoudBins = kLoudBinsPerOctave * 18;
constexpr int kSideBins = kFineBins + kLoudBins;
constexpr int kPlaces = 4;
constexpr size_t kBins = 2 * kSideBins + 1;
/// Loud bins begin at so many steps. A mean is taken of values clipped to it, lest a few decide it.
constexpr double kLoud = double{kFineBins} / kOffsetsPerStep;
/// Offsets must be levels: no larger than this, in steps.
constexpr double kMaxOffset = static_cast<double>(kMaxSteps) / kOffsetsPerStep;
static_assert(kLoud * (1 << kLoudBins / kLoudBinsPerOctave) == kMaxSteps);

size_t bin_of(double steps) {
  double bin = std::round(steps * kOffsetsPerStep);
  if (std::abs(bin) > kFineBins) {
    const double octaves = std::log2(std::abs(steps) / kLoud);
    const double loud = std::clamp(std::floor(octaves * kLoudBinsPerOctave), 0.0, kLoudBins - 1.0);
    bin = std::copysign(kFineBins + 1 + loud, steps);
  }
  return static_cast<size_t>(bin + kSideBins);
}

bool is_loud(size_t bin) { return std::abs(static_cast<int>(bin) - kSideBins) > kFineBins; }

/// Calls body(place, share) for the values that a bin's are taken to be, in steps: one in fine bins. In loud ones several,
/// spread over the bin, lest values that differ look alike once an offset is taken off.
template <class Body>
void for_each_place(size_t bin, const Body& body) {
  const int from_middle = static_cast<int>(bin) - kSideBins, size = std::abs(from_middle);
  if (!is_loud(bin)) return body(static_cast<double>(from_middle) / kOffsetsPerStep, 1.0);
  for (int i = 0; i < kPlaces; ++i) {
    const double octaves = (size - kFineBins - 1 + (i + 0.5) / kPlaces) / kLoudBinsPerOctave;
    body(std::copysign(kLoud * std::exp2(octaves), from_middle), 1.0 / kPlaces);
  }
}

/// The class as a number for differences: -1 for dead ones.
int number_of(uint8_t level_class) { return level_class == kDeadClass ? -1 : level_class; }

/// The cost of coding a component: errors, in squared steps, and bits at their worth.
class ComponentCost {
 public:
  /// counts: of each bin. zeros: tokens that are kept exactly, whose levels are 0.
  ComponentCost(const LevelTables& tables, std::span<const uint32_t> counts, double zeros) : tables_(tables) {
    for (size_t bin = 0; bin < counts.size(); ++bin) {
      if (counts[bin] == 0) continue;
      tokens_ += counts[bin];
      loud_ |= is_loud(bin);
      for_each_place(bin, [&](double place, double share) {
        places_.push_back(place);
        counts_.push_back(share * counts[bin]);
      });
    }
    counts_.push_back(zeros);
    for (auto* const values : {&values_, &back_, &bits_}) values->resize(counts_.size());
    levels_.resize(counts_.size());
  }

  /// True if any value is loud.
  bool loud() const { return loud_; }
  double tokens() const { return tokens_; }

  /// The mean of values clipped to `most` steps, as an offset.
  int32_t mean_offset(double limit) const {
    double sum = 0;
    for (size_t i = 0; i < places_.size(); ++i) sum += counts_[i] * std::clamp(places_[i], -limit, limit);
    return tokens_ > 0 ? static_cast<int32_t>(std::lround(sum / tokens_ * kOffsetsPerStep)) : 0;
  }

  void set_offset(int32_t offset) {
    for (size_t i = 0; i < places_.size(); ++i)
      values_[i] = static_cast<float>(places_[i] - static_cast<double>(offset) / kOffsetsPerStep);
  }

  /// From now on of this class.
  void set_class(uint8_t level_class) {
    for (auto* const values : {&back_, &bits_}) std::ranges::fill(*values, 0.0f);
    if (level_class == kDeadClass) return;
    tables_.quantize(level_class, 1, values_, levels_);
    tables_.reconstruct(level_class, 1, 1, levels_, back_);
    tables_.add_bits(level_class, levels_, bits_);
  }

  double gain(double unbias) const {
    double energy = 0, product = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      const auto value = static_cast<double>(values_[i]);
      energy += counts_[i] * value * value;
      product += counts_[i] * value * static_cast<double>(back_[i]);
    }
    return unbiasing_gain(energy, product, unbias);
  }

  /// The class that training would find: by rounding first, then twice by the tables of the class that came out.
  uint8_t trained_class() {
    double sum = 0;
    for (size_t i = 0; i < places_.size(); ++i)
      sum += counts_[i] * std::round(std::abs(static_cast<double>(values_[i])));
    uint8_t level_class = class_of_mean_level(sum / tokens_);
    for (int round = 0; round < kRounds && level_class != kDeadClass; ++round) {
      set_class(level_class);
      sum = 0;
      for (size_t i = 0; i < places_.size(); ++i) sum += counts_[i] * std::abs(levels_[i]);
      level_class = class_of_mean_level(sum / tokens_);
    }
    return level_class;
  }

  double with_gain(double gain) const {
    double sum = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      const double error = static_cast<double>(values_[i]) - gain * static_cast<double>(back_[i]);
      sum += counts_[i] * (error * error + kBitWorth * static_cast<double>(bits_[i]));
    }
    return sum;
  }

  /// No offset, gain or table makes it take less than these, the low bits of its levels.
  double least_bits(size_t level_class) const { return tokens_ * shift_of_class(level_class); }

 private:
  const LevelTables& tables_;
  std::vector<double> places_, counts_;  // counts_ has the zeros behind the places
  double tokens_ = 0;
  bool loud_ = false;
  std::vector<float> values_, back_, bits_;
  std::vector<int32_t> levels_;
};

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
  for (size_t row = 0; row < kRows; ++row) bytes.push_back(live_class_of_mean(mean_size(levels.row(row))));
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
    if (std::abs(levels(2, i)) > kMaxGainChange)
      throw bad_input("component {} has a gain changed by {}; at most {}", i, levels(2, i), kMaxGainChange);
  }
  adaptation.offsets.assign(levels.row(1).begin(), levels.row(1).end());
  adaptation.gain_changes.assign(levels.row(2).begin(), levels.row(2).end());
  return adaptation;
}

LevelRung changed_alike(LevelRung rung, const LevelRung& fitted, const Adaptation& adaptation) {
  for (size_t i = 0; i < rung.classes.size(); ++i) {
    const int own = number_of(rung.classes[i]), adapted = number_of(adaptation.classes[i]),
              number = std::clamp(own + adapted - number_of(fitted.classes[i]),
                                  own >= 0 && adapted >= 0 ? 0 : -1, static_cast<int>(kLevelClasses) - 1);
    rung.classes[i] = number < 0 ? kDeadClass : static_cast<uint8_t>(number);
    const float change = static_cast<float>(adaptation.gain_changes[i]) / static_cast<float>(kGainsPerUnit);
    rung.gains[i] = std::max(rung.gains[i] + change, 1 / static_cast<float>(kGainsPerUnit));
  }
  return rung;
}

AdaptationSurvey::AdaptationSurvey(const LevelTables& tables, const LevelRung& rung, size_t components,
                                   size_t width, double unbias)
    : tables_(tables),
      rung_(rung),
      width_(width),
      unbias_(unbias),
      coded_{Matrix<uint32_t>(components, kBins)},
      codable_{Matrix<uint32_t>(components, kBins)} {
  if (components > rung.classes.size())
    throw failed("a survey of {} components; there are {}", components, rung.classes.size());
}

void AdaptationSurvey::add(MatrixView<const float> values, std::span<const uint32_t> weights) {
  if (values.rows() != components() || values.cols() != weights.size())
    throw failed("{} components of {} tokens, and {} weights, for a survey of {}", values.rows(),
                 values.cols(), weights.size(), components());
  const std::vector<Fate> fates = fates_of(values);
  const double inverse = 1 / static_cast<double>(rung_.step);
  parallel_each(components(), kComponentGrain, [&](size_t i) {
    for (size_t t = 0; t < weights.size(); ++t) {
      if (fates[t] == Fate::exact) continue;
      Tokens& tokens = fates[t] == Fate::coded ? coded_ : codable_;
      tokens.counts(i, bin_of(static_cast<double>(values(i, t)) * inverse)) += weights[t];
    }
  });
  for (size_t t = 0; t < weights.size(); ++t)
    (fates[t] == Fate::exact   ? exact_
     : fates[t] == Fate::coded ? coded_.number
                               : codable_.number) += weights[t];
}

/// The error of a token beyond these components is not known here, and left out.
std::vector<AdaptationSurvey::Fate> AdaptationSurvey::fates_of(MatrixView<const float> values) const {
  std::vector<Fate> fates(values.cols());
  const float inverse = 1 / rung_.step;
  parallel_for(values.cols(), kTokenGrain, [&](size_t begin, size_t end, int) {
    const size_t count = end - begin;
    std::vector<float> steps(count), back(count), bits(count);
    std::vector<int32_t> levels(count);
    std::vector<double> errors(count);
    for (size_t i = 0; i < components(); ++i) {
      const auto row = values.row(i).subspan(begin, count);
      for (size_t t = 0; t < count; ++t) {
        steps[t] = row[t] * inverse;
        if (std::abs(steps[t]) < kMaxSteps) continue;
        steps[t] = 0;
        errors[t] = std::numeric_limits<double>::infinity();
      }
      std::ranges::fill(back, 0.0f);
      if (const uint8_t level_class = rung_.classes[i]; level_class != kDeadClass) {
        tables_.quantize(level_class, 1, steps, levels);
        tables_.reconstruct(level_class, 1, rung_.gains[i], levels, back);
        tables_.add_bits(level_class, levels, bits);
      }
      for (size_t t = 0; t < count; ++t) {
        const double error = static_cast<double>(steps[t]) - static_cast<double>(back[t]);
        errors[t] += error * error;
      }
    }
    for (size_t t = 0; t < count; ++t)
      fates[begin + t] = tables_.better_coded(errors[t], static_cast<double>(bits[t]), width_) ? Fate::coded
                         : std::isfinite(errors[t]) && is_codable(values, begin + t)           ? Fate::codable
                                                                                               : Fate::exact;
  });
  return fates;
}

/// True if the token would be coded if each component had the class that fits this value.
bool AdaptationSurvey::is_codable(MatrixView<const float> values, size_t token) const {
  float bits = 0;
  for (size_t i = 0; i < components(); ++i) {
    const float steps = values(i, token) / rung_.step;
    const uint8_t level_class = class_of_mean_level(static_cast<double>(std::abs(steps)));
    if (level_class == kDeadClass) continue;
    int32_t level = 0;
    tables_.quantize(level_class, 1, {&steps, 1}, {&level, 1});
    tables_.add_bits(level_class, {&level, 1}, {&bits, 1});
  }
  return tables_.better_coded(0, static_cast<double>(bits), width_);
}

AdaptationSurvey::Fit AdaptationSurvey::fit(size_t component, std::span<const uint32_t> counts,
                                            double zeros) const {
  const uint8_t of_book = rung_.classes[component];
  const auto gain_of_book = static_cast<double>(rung_.gains[component]);
  ComponentCost cost(tables_, counts, zeros);
  cost.set_offset(0);
  cost.set_class(of_book);
  Fit best{.level_class = of_book, .before = cost.with_gain(gain_of_book) / kBitWorth};
  best.after = best.before;
  double least = best.before;
  const auto try_gain = [&](Fit tried, double least_saved) {
    tried.before = best.before;
    tried.after =
        cost.with_gain(gain_of_book + static_cast<double>(tried.gain_change) / kGainsPerUnit) / kBitWorth;
    if (const double so = tried.after + least_saved; so < least) least = so, best = tried;
  };
  const auto gain_change = [&] {
    const double change = (cost.gain(unbias_) - gain_of_book) * kGainsPerUnit;
    return std::clamp(static_cast<int>(std::lround(change)), -kMaxGainChange, kMaxGainChange);
  };
  // A component that lives by the book stays alive, at next to no bits: dead, it would be lost to a token unlike others.
  const auto alive = [&](uint8_t level_class) {
    return level_class == kDeadClass && of_book != kDeadClass ? uint8_t{0} : level_class;
  };
  if (!cost.loud()) {
    if (cost.tokens() == 0) return best;
    const int32_t offset = cost.mean_offset(kLoud);
    cost.set_offset(offset);
    const uint8_t level_class = alive(cost.trained_class());
    cost.set_class(level_class);
    try_gain({.level_class = level_class,
              .offset = offset,
              .gain_change = level_class == kDeadClass ? 0 : gain_change()},
             kLeastSaved);
    return best;
  }
  // Neither a mean nor a mean level says much of values some of which are far from all others: what costs least is sought.
  const double least_saved = std::max(kLeastSaved, kByChance * cost.tokens());
  const auto try_class = [&](uint8_t level_class, int32_t offset) {
    cost.set_class(level_class);
    try_gain({.level_class = level_class, .offset = offset}, least_saved);
    if (level_class == kDeadClass) return;
    try_gain({.level_class = level_class, .offset = offset, .gain_change = gain_change()}, least_saved);
  };
  std::vector<int32_t> offsets{0, cost.mean_offset(kLoud), cost.mean_offset(kMaxOffset)};
  std::ranges::sort(offsets);
  offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
  for (const int32_t offset : offsets) {
    cost.set_offset(offset);
    if (of_book == kDeadClass) try_class(kDeadClass, offset);
    for (size_t c = 0; c < kLevelClasses && cost.least_bits(c) < least; ++c)
      try_class(static_cast<uint8_t>(c), offset);
  }
  return best;
}

std::vector<AdaptationSurvey::Fit> AdaptationSurvey::fits(bool with_codable) const {
  std::vector<Fit> fits(components());
  const auto zeros = static_cast<double>(with_codable ? exact_ : exact_ + codable_.number);
  parallel_for(components(), kComponentGrain, [&](size_t begin, size_t end, int) {
    std::vector<uint32_t> counts(kBins);
    for (size_t i = begin; i < end; ++i) {
      std::ranges::copy(coded_.counts.row(i), counts.begin());
      for (size_t bin = 0; with_codable && bin < kBins; ++bin) counts[bin] += codable_.counts(i, bin);
      fits[i] = fit(i, counts, zeros);
    }
  });
  return fits;
}

std::optional<Adaptation> AdaptationSurvey::finish() const {
  if (coded_.number + codable_.number == 0) return {};
  const auto sum_of = [](const std::vector<Fit>& fits, double Fit::*cost) {
    double sum = 0;
    for (const Fit& fit : fits) sum += fit.*cost;
    return sum;
  };
  std::vector<Fit> best = fits(false);
  const double by_book = sum_of(best, &Fit::before);
  double saved = by_book - sum_of(best, &Fit::after);
  if (codable_.number > 0) {
    std::vector<Fit> with_codable = fits(true);
    const double exact = 16 * static_cast<double>(width_) * static_cast<double>(codable_.number);
    if (const double more = by_book + exact - sum_of(with_codable, &Fit::after); more > saved) {
      saved = more;
      best = std::move(with_codable);
    }
  }
  const std::vector<int32_t> zeros(rung_.classes.size(), 0);
  Adaptation adaptation{rung_.classes, zeros, zeros};
  for (size_t i = 0; i < best.size(); ++i) {
    adaptation.classes[i] = best[i].level_class;
    adaptation.offsets[i] = best[i].offset;
    adaptation.gain_changes[i] = best[i].gain_change;
  }
  const size_t bytes = write_adaptation(adaptation, tables_, rung_.classes).size();
  if (saved <= 8 * static_cast<double>(bytes)) return {};
  return adaptation;
}

}  // namespace kvcodec
