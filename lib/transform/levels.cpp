#include "lib/transform/levels.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

/// Two classes to an octave of mean levels, from kMinMean on; below, a component is dead.
constexpr double kMinMean = 0.003;
constexpr int kFirstClass = -17;  // about 2 log2(kMinMean)
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
constexpr double kMaxGain = 3;
constexpr size_t kComponentGrain = 16;

constexpr uint8_t kEscape = kLevelSymbols;

size_t symbol_of(int32_t level, unsigned shift) {
  const int32_t high = level >> shift;
  return std::abs(high) <= kLargestSymbol ? static_cast<size_t>(high + kLargestSymbol) : kEscape;
}

/// Bits of a symbol; for the escape, and for symbols without a code of their own, those of the escape and its value.
float bits_of(const RansModel& model, size_t symbol) {
  const bool coded = model.frequency(symbol) > 0;
  const double frequency = model.frequency(coded ? symbol : model.escape());
  const double bits = model.scale() - std::log2(std::max(frequency, 1.0));
  return static_cast<float>(bits + (coded && symbol != model.escape() ? 0 : model.escape_bits()));
}

/// Sums over the levels of a class on the sample.
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

/// Learns from all bases at all steps, in rounds: the tables give components new classes, these give classes new tables.
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
  /// Calls body(rung, component, its values, scratch for levels, sums of its piece) for all components of all bases at all steps; each rank
  /// does so for its share of bases and steps. Then all ranks have all rungs, and get the sums of each step, over all bases.
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
      report(progress_, static_cast<double>(++done_), static_cast<double>((kRounds + 2) * own.count()));
    }
    team_.gather(std::span(sums), sums.size());
    gather_rungs();
    std::vector<Sum> total(steps);
    for (size_t at = 0; at < sums.size(); ++at) total[at % steps].add(sums[at]);
    return total;
  }

  /// Every rank has learned the rungs of its share; afterwards all have all.
  void gather_rungs() {
    const size_t steps = learned_.measures.size();
    for (int rank = 0; rank < team_.size(); ++rank) {
      const TeamShare share = team_.share_of(rank, samples_.size() * steps);
      for (size_t at = share.begin; at < share.end; ++at) {
        team_.broadcast(rank, learned_.rungs[at / steps][at % steps].classes);
        team_.broadcast(rank, learned_.rungs[at / steps][at % steps].gains);
      }
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

uint32_t zigzag(int32_t value) {
  return static_cast<uint32_t>(value) << 1 ^ static_cast<uint32_t>(value >> 31);
}

/// The level of an escape, with the low bits that belong to it. Throws Error(bad_input) for levels that are too large.
int32_t escaped_level(uint32_t value, unsigned shift, uint32_t low_bits) {
  const int64_t high = from_zigzag(value), level = high * (int64_t{1} << shift) + low_bits;
  constexpr int64_t kMax = 1 << (kEscapedBits - 1);
  if (level <= -kMax || level >= kMax)
    throw bad_input("an escape holds {}, and its level is {}; sizes are below {}", high, level, kMax);
  return static_cast<int32_t>(level);
}

float finer_step(float step, double finer) { return static_cast<float>(static_cast<double>(step) / finer); }

}  // namespace

double unbiasing_gain(double energy, double product, double unbias) {
  return product > 0 ? std::pow(std::clamp(energy / product, 1.0, kMaxGain), unbias) : 1.0;
}

uint8_t class_of_mean_level(double mean_level) {
  if (!(mean_level >= kMinMean)) return kDeadClass;
  const double octave = std::round(2 * std::log2(mean_level)) - kFirstClass;
  return static_cast<uint8_t>(std::clamp(octave, 0.0, static_cast<double>(kLevelClasses - 1)));
}

double mean_size(std::span<const int32_t> levels) {
  double sum = 0;
  for (const int32_t level : levels) sum += std::abs(level);
  return levels.empty() ? 0 : sum / static_cast<double>(levels.size());
}

uint8_t live_class_of_mean(double mean_level) {
  const uint8_t level_class = class_of_mean_level(mean_level);
  return level_class == kDeadClass ? 0 : level_class;
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
      const auto value = [&](int level) {
        return level == 0 ? 0.0 : level - static_cast<double>(shrink[shrunk_index(level)]);
      };
      const auto cost = [&](int level) {
        return value(level) * value(level) +
               lambda * static_cast<double>(symbol_bits_[c][symbol_of(level, 0)]);
      };
      double threshold = k - 0.5;
      if (shift_of_class(c) == 0) threshold = (cost(k) - cost(k - 1)) / (2 * (value(k) - value(k - 1)));
      thresholds_[c][as_size(k)] = static_cast<float>(std::clamp(threshold, k - 0.5, k + 0.5));
    }
  }
}

void LevelTables::quantize(size_t level_class, float step, std::span<const float> values,
                           std::span<int32_t> levels) const {
  constexpr float kMax = 1 << (kEscapedBits - 1);
  const auto& thresholds = thresholds_[level_class];
  const float inverse = 1 / step;
  for (size_t i = 0; i < values.size(); ++i) {
    const float size = std::abs(values[i]) * inverse;
    if (!(size + 0.5f < kMax))  // as nearest() rounds
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
  const double bit_cost = std::max(lambda_, LevelOptions{}.lambda);
  return error + bit_cost * bits < bit_cost * 16 * static_cast<double>(width);
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

LevelCoder::LevelCoder(const LevelTables& tables, std::vector<uint8_t> classes)
    : tables_(tables), classes_(std::move(classes)) {
  for (const uint8_t level_class : classes_) {
    if (level_class >= kLevelClasses) throw failed("a component of class {}", level_class);
    low_bits_ += shift_of_class(level_class);
  }
}

/// Joins neighbours of one class into one run where each fills whole groups of 8 rANS lanes: the bytes are the same either way.
std::vector<RansRun> LevelCoder::runs(size_t tokens) const {
  std::vector<RansRun> runs;
  for (const uint8_t level_class : classes_)
    if (tokens % 8 == 0 && !runs.empty() && runs.back().model == level_class)
      runs.back().symbols += tokens;
    else
      runs.push_back({level_class, tokens});
  return runs;
}

uint64_t LevelCoder::low_bytes(size_t tokens) const {
  return checked_mul(low_bits_, tokens) / 8 + (low_bits_ * tokens % 8 != 0);
}

uint32_t LevelCoder::encode(MatrixView<const int32_t> levels, std::vector<uint8_t>& out) const {
  const size_t tokens = levels.cols(), start = out.size();
  if (levels.rows() != components())
    throw failed("levels of {} components, not {}", levels.rows(), components());
  std::vector<uint8_t> symbols(components() * tokens);
  std::vector<uint32_t> escaped;
  BitWriter low;
  for (size_t i = 0; i < components(); ++i) {
    const unsigned shift = shift_of_class(classes_[i]);
    uint8_t* const of_component = symbols.data() + i * tokens;
    const std::span<const int32_t> row = levels.row(i);
    const RansModel& model = tables_[classes_[i]].model;
    for (size_t t = 0; t < tokens; ++t) {
      const int32_t high = row[t] >> shift;
      const bool small = std::abs(high) <= kLargestSymbol;
      const auto symbol = static_cast<size_t>(std::max(high + kLargestSymbol, 0));
      if (small && model.frequency(symbol) > 0) {
        of_component[t] = static_cast<uint8_t>(symbol);
      } else {
        of_component[t] = kEscape;
        escaped.push_back(zigzag(high));
      }
      if (shift > 0) low.put(static_cast<uint32_t>(row[t]), shift);
    }
  }
  uint32_t segment_bytes = 0;
  tables_.symbol_coder().encoder.encode_segments(MatrixView<const uint8_t>(symbols.data(), 1, symbols.size()),
                                                 escaped, {&segment_bytes, 1}, out, runs(tokens));
  append_to(out, low.finish());
  if (out.size() - start > std::numeric_limits<uint32_t>::max())
    throw failed("a block of {} bytes", out.size() - start);
  return static_cast<uint32_t>(out.size() - start);
}

void LevelCoder::decode(std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes,
                        size_t tokens, MatrixView<int32_t> levels) const {
  if (levels.rows() != components() || levels.cols() != block_bytes.size() * tokens)
    throw failed("room for levels ({}, {}) of {} blocks of {} tokens", levels.rows(), levels.cols(),
                 block_bytes.size(), tokens);
  constexpr size_t kTogether = RansDecoder<uint8_t>::kTogether;
  const std::vector<RansRun> runs = this->runs(tokens);
  const uint64_t low = low_bytes(tokens);
  const RansDecoder<uint8_t>& decoder = tables_.symbol_coder().decoder;
  uint64_t begin = 0;
  Matrix<uint8_t> symbols(std::min(kTogether, block_bytes.size()), components() * tokens);
  std::vector<uint8_t> segments;
  for (size_t first = 0; first < block_bytes.size(); first += kTogether) {
    const size_t count = std::min(kTogether, block_bytes.size() - first);
    // Segments one behind the other, without the low bits between them.
    segments.clear();
    std::vector<uint32_t> segment_bytes;
    std::vector<std::span<const uint8_t>> lows;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bytes = block_bytes[first + i];
      if (bytes < low || bytes > payload.size() - begin)
        throw bad_input("block {}: {} bytes; {} are there, and {} are low bits", first + i, bytes,
                        payload.size() - begin, low);
      const auto block = payload.subspan(begin, bytes);
      segment_bytes.push_back(static_cast<uint32_t>(bytes - low));
      append_to(segments, block.first(bytes - low));
      lows.push_back(block.last(low));
      begin += bytes;
    }
    std::vector<EscapedValue> escaped;
    decoder.decode_segments(segments, segment_bytes, symbols.view().rows(0, count), escaped, runs);
    for (size_t i = 0; i < count; ++i) {
      const std::span<const uint8_t> row = symbols.row(i);
      BitReader bits(lows[i]);
      size_t next = 0;
      while (next < escaped.size() && escaped[next].row < i) ++next;
      for (size_t c = 0; c < components(); ++c) {
        const unsigned shift = shift_of_class(classes_[c]);
        int32_t* const out = levels.row(c).data() + (first + i) * tokens;
        for (size_t t = 0; t < tokens; ++t) {
          const auto high = static_cast<uint32_t>(row[c * tokens + t] - kLargestSymbol);
          out[t] = static_cast<int32_t>(shift == 0 ? high : high << shift | bits.get(shift));
        }
        for (; next < escaped.size() && escaped[next].row == i && escaped[next].position < (c + 1) * tokens;
             ++next) {
          int32_t& level = out[escaped[next].position - c * tokens];
          level =
              escaped_level(escaped[next].value, shift, static_cast<uint32_t>(level) & ((1u << shift) - 1));
        }
      }
      if (low > 0 && (lows[i].back() & ((1u << (low * 8 - low_bits_ * tokens)) - 1)) != 0)
        throw bad_input("block {}: bits behind its last low bits are not 0", first + i);
    }
  }
}

FirstTokens learn_first_tokens(MatrixView<const float> rows, const ErrorMetric& metric, size_t blocks,
                               std::span<const float> steps, double finer) {
  const size_t width = rows.cols();
  if (rows.rows() == 0 || blocks == 0 || width % blocks != 0)
    throw failed("{} first tokens of {} values in {} heads", rows.rows(), width, blocks);
  FirstTokens learned;
  for (size_t c = 0; c < width; ++c) {
    double sum = 0;
    for (size_t i = 0; i < rows.rows(); ++i) sum += static_cast<double>(rows(i, c));
    learned.mean.push_back(static_cast<float>(sum / static_cast<double>(rows.rows())));
  }
  Matrix<float> centred(rows.rows(), width);
  for (size_t i = 0; i < rows.rows(); ++i)
    for (size_t c = 0; c < width; ++c) centred(i, c) = rows(i, c) - learned.mean[c];
  const Matrix<float> weighted = metric.times_root(centred);
  // A row has the values of one head, of all tokens.
  const size_t head_dim = width / blocks;
  Matrix<float> heads(blocks, rows.rows() * head_dim);
  for (size_t i = 0; i < rows.rows(); ++i)
    for (size_t c = 0; c < width; ++c) heads(c / head_dim, i * head_dim + c % head_dim) = weighted(i, c);
  for (const float step : steps) {
    auto& classes = learned.classes.emplace_back();
    for (size_t b = 0; b < blocks; ++b) {  // by the mean level that rounding gives values
      double sum = 0;
      for (const float value : heads.row(b))
        sum += std::round(std::abs(static_cast<double>(value / finer_step(step, finer))));
      classes.push_back(live_class_of_mean(sum / static_cast<double>(heads.cols())));
    }
  }
  return learned;
}

FirstTokenCoder::FirstTokenCoder(const ErrorMetric& metric, const LevelTables& tables,
                                 std::vector<float> mean, const std::vector<uint8_t>& classes, float step,
                                 double finer)
    : metric_(metric),
      tables_(tables),
      mean_(std::move(mean)),
      classes_(classes),
      step_(finer_step(step, finer)),
      coder_(tables, classes) {
  if (classes_.empty() || width() % classes_.size() != 0 || metric_.width() != width())
    throw failed("first tokens of {} values in {} heads; the metric has {}", width(), classes_.size(),
                 metric_.width());
}

void FirstTokenCoder::encode(std::span<const float> row, std::vector<uint8_t>& out) const {
  if (row.size() != width()) throw failed("a first token of {} values, not {}", row.size(), width());
  Matrix<float> centred(1, width());
  for (size_t c = 0; c < width(); ++c) centred(0, c) = row[c] - mean_[c];
  const Matrix<float> weighted = metric_.times_root(centred);
  Matrix<int32_t> levels(classes_.size(), head_dim());
  for (size_t b = 0; b < classes_.size(); ++b)
    tables_.quantize(classes_[b], step_, weighted.row(0).subspan(b * head_dim(), head_dim()), levels.row(b));
  coder_.encode(levels, out);
}

void FirstTokenCoder::decode(std::span<const uint8_t> bytes, std::span<float> row) const {
  if (row.size() != width()) throw failed("room for {} values of a first token of {}", row.size(), width());
  Matrix<int32_t> levels(classes_.size(), head_dim());
  const auto size = static_cast<uint32_t>(bytes.size());
  coder_.decode(bytes, {&size, 1}, head_dim(), levels);
  Matrix<float> weighted(1, width());
  for (size_t b = 0; b < classes_.size(); ++b)
    tables_.reconstruct(classes_[b], step_, 1, levels.row(b),
                        weighted.row(0).subspan(b * head_dim(), head_dim()));
  const Matrix<float> back = metric_.times_inverse_root(weighted);
  for (size_t c = 0; c < width(); ++c) row[c] = mean_[c] + back(0, c);
}

}  // namespace kvcodec
