#include "lib/transform/levels.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

/// Two classes to an octave of mean levels, from kLeastMean on; below, a component is dead.
constexpr double kLeastMean = 0.003;
constexpr int kFirstClass = -17;  // 2 log2 of kLeastMean, about
/// From this class on (a mean level of 4) levels have a low bit of their own, and one more with each octave.
constexpr size_t kFirstShifted = 4 - kFirstClass;
/// The first round of learning has no tables to decide by: values below so many steps become 0.
constexpr float kFirstThreshold = 0.7f;
constexpr int kRounds = 2;
/// Prior of a class's shrinks: they are estimated as if so many more levels had been seen, without any shrink.
constexpr double kShrinkPrior = 50;
/// Prior of a class's frequencies: so many levels of a two-sided geometric distribution count as seen. So a class that no
/// component is in has a model too, which other texts (adaptation.hpp) and first tokens may need.
constexpr double kCountPrior = 64;
constexpr double kMostGain = 3;
constexpr size_t kComponentGrain = 16;

constexpr size_t kEscape = kLevelSymbols;

size_t symbol_of(int32_t level, unsigned shift) {
  const int32_t high = level >> shift;
  return std::abs(high) <= kLargestSymbol ? static_cast<size_t>(high + kLargestSymbol) : kEscape;
}

/// Bits of a symbol; for the escape, and for symbols without a code, those of the escape and its value.
float bits_of(const RansModel& model, size_t symbol) {
  const bool coded = model.frequency(symbol) > 0;
  const double frequency = model.frequency(coded ? symbol : model.escape());
  const double bits = model.scale() - std::log2(std::max(frequency, 1.0));
  return static_cast<float>(bits + (coded && symbol != model.escape() ? 0 : model.escape_bits()));
}

/// What the levels of a class add up to on the sample.
struct ClassCounts {
  std::array<uint64_t, kLevelSymbols + 1> symbols{};
  std::array<double, kShrunkLevels> excess{}, seen{};  // sums of level - |y| / step, and how many

  void add(const ClassCounts& other) {
    for (size_t i = 0; i < symbols.size(); ++i) symbols[i] += other.symbols[i];
    for (size_t i = 0; i < kShrunkLevels; ++i) excess[i] += other.excess[i], seen[i] += other.seen[i];
  }
};

/// The ratio of neighbours' frequencies in a two-sided geometric distribution of this mean size.
double ratio_of(double mean) { return (std::sqrt(1 + mean * mean) - 1) / mean; }

/// The mean size of a class's symbols: that of its levels without their low bits.
double mean_symbol_of(size_t level_class) {
  return std::exp2((static_cast<double>(level_class) + kFirstClass) / 2 - shift_of_class(level_class));
}

LevelClass class_from(const ClassCounts& counts, size_t level_class) {
  std::vector<uint64_t> symbols(counts.symbols.begin(), counts.symbols.end() - 1);
  // Both signs alike, unless low bits are split off: level >> shift rounds down.
  for (size_t k = 0; k < kLargestSymbol; ++k) {
    uint64_t& negative = symbols[k];
    uint64_t& positive = symbols[kLevelSymbols - 1 - k];
    const uint64_t both = negative + positive;
    if (shift_of_class(level_class) == 0) negative = positive = both / 2 + both % 2;
  }
  const double ratio = ratio_of(mean_symbol_of(level_class)), zeros = (1 - ratio) / (1 + ratio);
  for (size_t k = 0; k < kLevelSymbols; ++k) {
    const double size = std::abs(static_cast<double>(k) - kLargestSymbol);
    symbols[k] += static_cast<uint64_t>(std::lround(kCountPrior * zeros * std::pow(ratio, size)));
  }
  LevelClass result{RansModel::from_counts(symbols, {.escape_bits = kEscapedBits, .scale = 0}), {}};
  if (shift_of_class(level_class) > 0) return result;
  for (size_t i = 0; i < kShrunkLevels; ++i)
    result.shrink[i] =
        std::clamp(static_cast<float>(counts.excess[i] / (counts.seen[i] + kShrinkPrior)), 0.0f, 0.5f);
  return result;
}

/// The whole number nearest to a size that is not negative.
int32_t nearest(float size) {
  const float raised = size + 0.5f;
  return static_cast<int32_t>(raised);
}

/// Levels without tables: rounded to the nearest, except that sizes below kFirstThreshold become 0.
void quantize_plainly(float step, std::span<const float> values, std::span<int32_t> levels) {
  for (size_t i = 0; i < values.size(); ++i) {
    const float size = std::abs(values[i]) / step;
    const auto level = size < kFirstThreshold ? 0 : nearest(size);
    levels[i] = values[i] < 0 ? -level : level;
  }
}

double mean_size(std::span<const int32_t> levels) {
  double sum = 0;
  for (const int32_t level : levels) sum += std::abs(level);
  return levels.empty() ? 0 : sum / static_cast<double>(levels.size());
}

void count(size_t level_class, float step, std::span<const float> values, std::span<const int32_t> levels,
           ClassCounts& counts) {
  const unsigned shift = shift_of_class(level_class);
  for (size_t i = 0; i < levels.size(); ++i) {
    ++counts.symbols[symbol_of(levels[i], shift)];
    const int32_t size = std::abs(levels[i]);
    if (size == 0) continue;
    const size_t at = shrunk_index(size);
    counts.excess[at] += static_cast<double>(static_cast<float>(size) - std::abs(values[i]) / step);
    counts.seen[at] += 1;
  }
}

/// Learns from all bases at all steps, in rounds: components get classes from the tables, then classes new tables.
class Learner {
 public:
  Learner(std::span<const Matrix<float>> samples, std::span<const float> steps, const LevelOptions& options,
          const Progress& progress, const Team& team)
      : samples_(samples), options_(options), progress_(progress), team_(team) {
    for (const Matrix<float>& sample : samples) {
      auto& of_basis = learned_.rungs.emplace_back();
      for (const float step : steps)
        of_basis.push_back(
            {step, std::vector<uint8_t>(sample.rows(), kDeadClass), std::vector<float>(sample.rows(), 1.0f)});
    }
    learned_.measures.resize(steps.size());
  }

  LearnedLevels run() {
    learn_round(nullptr);
    for (int round = 0; round < kRounds; ++round) {
      const LevelTables tables(learned_.classes, options_.lambda);
      learn_round(&tables);
    }
    measure();
    return std::move(learned_);
  }

 private:
  /// Calls body(rung, component, its values, scratch for levels, sums of its piece) for all components of all bases at
  /// all steps; each rank does so for its share of bases and steps. Then all ranks have all rungs, and get the sums of
  /// each step, over all bases.
  template <class Sum, class Body>
  std::vector<Sum> for_each_component(const Body& body) {
    const size_t steps = learned_.measures.size();
    std::vector<Sum> sums(samples_.size() * steps);
    const TeamShare own = team_.share(sums.size());
    for (size_t at = own.begin; at < own.end; ++at) {
      const Matrix<float>& sample = samples_[at / steps];
      LevelRung& rung = learned_.rungs[at / steps][at % steps];
      std::vector<Sum> pieces((sample.rows() + kComponentGrain - 1) / kComponentGrain);
      parallel_for(sample.rows(), kComponentGrain, [&](size_t begin, size_t end, int) {
        std::vector<int32_t> levels(sample.cols());
        for (size_t i = begin; i < end; ++i)
          body(rung, i, sample.row(i), levels, pieces[begin / kComponentGrain]);
      });
      for (const Sum& piece : pieces) sums[at].add(piece);
      report(progress_, static_cast<double>(++done_), static_cast<double>(planned()));
    }
    team_.gather(std::span(sums), sums.size());
    gather_rungs();
    std::vector<Sum> total(steps);
    for (size_t at = 0; at < sums.size(); ++at) total[at % steps].add(sums[at]);
    return total;
  }
  size_t planned() const {
    return (kRounds + 2) * team_.share(samples_.size() * learned_.measures.size()).count();
  }

  /// Every rank has learned the rungs of its share; afterwards all have all.
  void gather_rungs() {
    if (team_.size() == 1) return;
    std::vector<LevelRung*> rungs;
    std::vector<size_t> starts{0};
    for (auto& of_basis : learned_.rungs)
      for (LevelRung& rung : of_basis) {
        rungs.push_back(&rung);
        starts.push_back(starts.back() + rung.classes.size());
      }
    const std::vector<size_t> bounds = team_.bounds(starts);
    std::vector<uint8_t> classes(starts.back());
    std::vector<float> gains(starts.back());
    for (size_t at = 0; at < rungs.size(); ++at) {
      std::ranges::copy(rungs[at]->classes, &classes[starts[at]]);
      std::ranges::copy(rungs[at]->gains, &gains[starts[at]]);
    }
    team_.exchange(std::span(classes), bounds);
    team_.exchange(std::span(gains), bounds);
    for (size_t at = 0; at < rungs.size(); ++at) {
      const size_t count = rungs[at]->classes.size();
      std::ranges::copy(std::span(classes).subspan(starts[at], count), rungs[at]->classes.begin());
      std::ranges::copy(std::span(gains).subspan(starts[at], count), rungs[at]->gains.begin());
    }
  }

  struct Counts {
    std::array<ClassCounts, kLevelClasses> classes;
    void add(const Counts& other) {
      for (size_t i = 0; i < classes.size(); ++i) classes[i].add(other.classes[i]);
    }
  };

  /// Quantizes with these tables, or plainly, and makes new classes and tables of what comes out.
  void learn_round(const LevelTables* tables) {
    const auto counts =
        for_each_component<Counts>([&](LevelRung& rung, size_t i, std::span<const float> values,
                                       std::vector<int32_t>& levels, Counts& sums) {
          if (!tables)
            quantize_plainly(rung.step, values, levels);
          else if (rung.classes[i] != kDeadClass)
            tables->quantize(rung.classes[i], rung.step, values, levels);
          else
            return;
          rung.classes[i] = class_of_mean_level(mean_size(levels));
          if (rung.classes[i] != kDeadClass)
            count(rung.classes[i], rung.step, values, levels, sums.classes[rung.classes[i]]);
        });
    Counts all;
    for (const Counts& of_step : counts) all.add(of_step);
    learned_.classes.clear();
    for (size_t i = 0; i < kLevelClasses; ++i) learned_.classes.push_back(class_from(all.classes[i], i));
  }

  struct Measure {
    double bits = 0, error = 0;
    void add(const Measure& other) { bits += other.bits, error += other.error; }
  };

  /// Sets the gains, and measures bits and errors with the final tables.
  void measure() {
    const LevelTables tables(learned_.classes, options_.lambda);
    const auto sums = for_each_component<Measure>([&](LevelRung& rung, size_t i,
                                                      std::span<const float> values,
                                                      std::vector<int32_t>& levels, Measure& sum) {
      double energy = 0, product = 0;
      for (const float value : values) energy += static_cast<double>(value) * static_cast<double>(value);
      if (rung.classes[i] == kDeadClass) {
        sum.error += energy;
        return;
      }
      std::vector<float> back(values.size());
      tables.quantize(rung.classes[i], rung.step, values, levels);
      tables.reconstruct(rung.classes[i], rung.step, 1, levels, back);
      for (size_t t = 0; t < values.size(); ++t)
        product += static_cast<double>(values[t]) * static_cast<double>(back[t]);
      rung.gains[i] = static_cast<float>(unbiasing_gain(energy, product, options_.unbias));
      for (size_t t = 0; t < values.size(); ++t) {
        const double error = static_cast<double>(values[t]) - static_cast<double>(rung.gains[i] * back[t]);
        sum.error += error * error;
      }
      std::ranges::fill(back, 0.0f);
      tables.add_bits(rung.classes[i], levels, back);
      for (const float bits : back) sum.bits += static_cast<double>(bits);
    });
    const double tokens = samples_.empty() ? 1 : static_cast<double>(samples_.front().cols());
    for (size_t step = 0; step < sums.size(); ++step)
      learned_.measures[step] = {sums[step].bits / tokens, sums[step].error / tokens};
  }

  std::span<const Matrix<float>> samples_;
  LevelOptions options_;
  const Progress& progress_;
  const Team& team_;
  LearnedLevels learned_;
  size_t done_ = 0;
};

}  // namespace

double unbiasing_gain(double energy, double product, double unbias) {
  return product > 0 ? std::pow(std::clamp(energy / product, 1.0, kMostGain), unbias) : 1.0;
}

uint8_t class_of_mean_level(double mean_level) {
  if (!(mean_level >= kLeastMean)) return kDeadClass;
  const double octave = std::round(2 * std::log2(mean_level)) - kFirstClass;
  return static_cast<uint8_t>(std::clamp(octave, 0.0, static_cast<double>(kLevelClasses - 1)));
}

unsigned shift_of_class(size_t level_class) {
  return level_class < kFirstShifted ? 0 : static_cast<unsigned>((level_class - kFirstShifted) / 2 + 1);
}

const LevelSymbolCoder& LevelTables::symbol_coder() const {
  return symbol_coder_->get([&] {
    std::vector<RansModel> models;
    models.reserve(classes_.size());
    for (const LevelClass& level_class : classes_) models.push_back(level_class.model);
    return LevelSymbolCoder(models);
  });
}

LevelTables::LevelTables(std::vector<LevelClass> classes, double lambda)
    : classes_(std::move(classes)),
      lambda_(lambda),
      symbol_coder_(std::make_shared<Lazy<LevelSymbolCoder>>()) {
  if (classes_.size() != kLevelClasses)
    throw bad_input("{} classes of levels; there must be {}", classes_.size(), kLevelClasses);
  if (!(lambda >= 0) || !std::isfinite(lambda))
    throw bad_input("lambda is {}; it must be at least 0", lambda);
  thresholds_.resize(kLevelClasses);
  symbol_bits_.resize(kLevelClasses);
  for (size_t c = 0; c < kLevelClasses; ++c) {
    const RansModel& model = classes_[c].model;  // clang 14 captures no binding
    const auto& shrink = classes_[c].shrink;
    if (model.alphabet() != kLevelSymbols || model.escape_bits() != kEscapedBits)
      throw bad_input("class {} has a model of {} symbols and escapes of {} bits; it must have {} and {}", c,
                      model.alphabet(), model.escape_bits(), kLevelSymbols, kEscapedBits);
    for (const float value : shrink)
      if (!(value >= 0 && value <= 0.5f))
        throw bad_input("class {} shrinks levels by {}; that must be 0 to 0.5", c, value);
    for (size_t symbol = 0; symbol <= kLevelSymbols; ++symbol)
      symbol_bits_[c][symbol] = bits_of(model, symbol);
    for (int k = 1; k <= kLargestSymbol; ++k) {
      const auto place = [&](int level) {
        return level == 0 ? 0.0 : level - static_cast<double>(shrink[shrunk_index(level)]);
      };
      const auto cost = [&](int level) {
        return place(level) * place(level) +
               lambda * static_cast<double>(symbol_bits_[c][symbol_of(level, 0)]);
      };
      double threshold = k - 0.5;
      if (shift_of_class(c) == 0) threshold = (cost(k) - cost(k - 1)) / (2 * (place(k) - place(k - 1)));
      thresholds_[c][static_cast<size_t>(k)] = static_cast<float>(std::clamp(threshold, k - 0.5, k + 0.5));
    }
  }
}

void LevelTables::quantize(size_t level_class, float step, std::span<const float> values,
                           std::span<int32_t> levels) const {
  constexpr float kMost = 1 << (kEscapedBits - 1);
  const auto& thresholds = thresholds_[level_class];
  const float inverse = 1 / step;
  for (size_t i = 0; i < values.size(); ++i) {
    const float size = std::abs(values[i]) * inverse;
    if (!(size + 0.5f < kMost))  // as nearest() rounds
      throw bad_input("a component is {}; steps of {} are too fine for it", values[i], step);
    int32_t level = nearest(size);
    if (level > 0 && level <= kLargestSymbol) level -= size < thresholds[static_cast<size_t>(level)];
    levels[i] = values[i] < 0 ? -level : level;
  }
}

void LevelTables::reconstruct(size_t level_class, float step, float gain, std::span<const int32_t> levels,
                              std::span<float> values) const {
  const auto& shrink = classes_[level_class].shrink;
  const float unit = step * gain;
  for (size_t i = 0; i < levels.size(); ++i) values[i] = value_of_level(levels[i], shrink.data(), unit);
}

void LevelTables::add_bits(size_t level_class, std::span<const int32_t> levels, std::span<float> bits) const {
  const unsigned shift = shift_of_class(level_class);
  for (size_t i = 0; i < levels.size(); ++i)
    bits[i] += symbol_bits_[level_class][symbol_of(levels[i], shift)] + static_cast<float>(shift);
}

bool LevelTables::better_coded(double error, double bits, size_t width) const {
  const double of_bit = std::max(lambda_, LevelOptions{}.lambda);
  return error + of_bit * bits < of_bit * 16 * static_cast<double>(width);
}

std::vector<uint32_t> LevelRung::live() const {
  std::vector<uint32_t> components;
  for (size_t i = 0; i < classes.size(); ++i)
    if (classes[i] != kDeadClass) components.push_back(static_cast<uint32_t>(i));
  return components;
}

LearnedLevels learn_levels(std::span<const Matrix<float>> samples, std::span<const float> steps,
                           const LevelOptions& options, const Progress& progress, const Team& team) {
  for (const Matrix<float>& sample : samples)
    if (sample.cols() != samples.front().cols() || sample.cols() == 0)
      throw failed("samples of {} and {} tokens", samples.front().cols(), sample.cols());
  return Learner(samples, steps, options, progress, team).run();
}

}  // namespace kvcodec
