#include "lib/entropy/rans.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <queue>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr size_t kMaxAlphabet = 65536;
constexpr unsigned kMaxEscapeBits = 32;
/// Counts up to here are exact in double, and so are their sums.
constexpr uint64_t kMaxTotal = uint64_t{1} << 53;

/// Fields and tokens of a written model (rans.hpp).
constexpr unsigned kAlphabetBits = 17, kEscapeWidthBits = 6, kScaleBits = 5;
constexpr unsigned kTokenBits = 5, kFewAbsent = 17, kManyAbsent = 18;
/// Frequencies stay below 2^16, which is what decoders' tables hold: a model of one symbol has a scale
/// below 16.
constexpr unsigned kMaxFrequencyBits = 16;
constexpr size_t kFewFrom = 2, kFewTo = 17;
constexpr size_t kManyFrom = 18, kManyTo = 18 + 4095;
/// About what a frequency takes in a written model: a token and half the bits of a rare symbol's frequency.
constexpr double kFrequencyBits = 8;

/// What one more (or one less) of frequency changes the bits of a symbol that occurs `count` times.
double gain(uint64_t count, uint32_t frequency) {
  return static_cast<double>(count) * std::log2(1.0 + 1.0 / frequency);
}

/// Frequencies of sum 2^scale for the symbols that are coded, each at least 1, with the fewest bits: rounded
/// first, then changed one by one where that costs least. Costs are convex in every frequency, so when no
/// single exchange gains any more, nothing does.
std::vector<uint32_t> best_frequencies(std::span<const uint64_t> counts, const std::vector<bool>& coded,
                                       unsigned scale) {
  const int64_t wanted = int64_t{1} << scale;
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
  std::vector<uint32_t> frequencies(counts.size(), 0);
  int64_t sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (!coded[i]) continue;
    const double share = total > 0 ? static_cast<double>(counts[i]) / total * static_cast<double>(wanted) : 0;
    frequencies[i] = static_cast<uint32_t>(std::max(1.0, std::floor(share)));
    sum += frequencies[i];
  }
  if (sum == 0) return frequencies;

  // Heaps of (bits, symbol); entries that are out of date are skipped. Ties go to the smaller symbol.
  using Step = std::pair<double, size_t>;
  const auto more = [](const Step& a, const Step& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  const auto less = [](const Step& a, const Step& b) {
    return a.first != b.first ? a.first > b.first : a.second > b.second;
  };
  std::priority_queue<Step, std::vector<Step>, decltype(more)> increments(more);
  std::priority_queue<Step, std::vector<Step>, decltype(less)> decrements(less);
  const auto push = [&](size_t i) {
    increments.emplace(gain(counts[i], frequencies[i]), i);
    if (frequencies[i] > 1) decrements.emplace(gain(counts[i], frequencies[i] - 1), i);
  };
  for (size_t i = 0; i < counts.size(); ++i)
    if (coded[i]) push(i);
  const auto drop_stale = [&] {
    while (!increments.empty() && increments.top().first != gain(counts[increments.top().second],
                                                                 frequencies[increments.top().second]))
      increments.pop();
    while (!decrements.empty() && (frequencies[decrements.top().second] == 1 ||
                                   decrements.top().first != gain(counts[decrements.top().second],
                                                                  frequencies[decrements.top().second] - 1)))
      decrements.pop();
  };
  const auto change = [&](size_t i, int by) {
    frequencies[i] = static_cast<uint32_t>(static_cast<int64_t>(frequencies[i]) + by);
    sum += by;
    push(i);
    drop_stale();
  };
  drop_stale();
  while (sum < wanted) change(increments.top().second, 1);
  while (sum > wanted) change(decrements.top().second, -1);
  while (!decrements.empty() && increments.top().first > decrements.top().first) {
    const size_t up = increments.top().second, down = decrements.top().second;
    change(up, 1);
    change(down, -1);
  }
  return frequencies;
}

/// Whether storing a symbol raw beats giving it a frequency of 1: that takes 1/M of the others' probability
/// and an entry in the model, against the raw bits and an escape that is as rare itself.
bool better_escaped(uint64_t count, uint64_t total, unsigned scale, unsigned escape_bits) {
  const double share = static_cast<double>(total) * std::exp2(-double(scale)) * 1.4427;  // log2(e)
  return static_cast<double>(count) * escape_bits < share + kFrequencyBits;
}

}  // namespace

RansModel::RansModel(size_t alphabet, unsigned escape_bits, unsigned scale, std::vector<uint32_t> frequencies)
    : alphabet_(alphabet),
      escape_bits_(escape_bits),
      scale_(scale),
      frequencies_(std::move(frequencies)),
      starts_(frequencies_.size()) {
  std::exclusive_scan(frequencies_.begin(), frequencies_.end(), starts_.begin(), 0u);
}

RansModel RansModel::from_counts(std::span<const uint64_t> counts, const RansOptions& options) {
  if (counts.size() > kMaxAlphabet)
    throw failed("an alphabet of {} symbols; models have at most {}", counts.size(), kMaxAlphabet);
  if (options.escape_bits > kMaxEscapeBits)
    throw failed("escaped values of {} bits; they have at most {}", options.escape_bits, kMaxEscapeBits);
  if (options.scale != 0 && (options.scale < kMinRansScale || options.scale > kMaxRansScale))
    throw failed("a scale of {}; it must be {} to {}", options.scale, kMinRansScale, kMaxRansScale);
  if (options.max_symbols == 0) throw failed("a model of at most 0 symbols");
  uint64_t total = 0;
  for (const uint64_t count : counts) {
    if (count > kMaxTotal - total) throw failed("counts of more than 2^53 symbols");
    total += count;
  }
  const bool escape = options.escape_bits > 0;
  const auto used =
      static_cast<size_t>(std::count_if(counts.begin(), counts.end(), [](uint64_t c) { return c > 0; }));
  if (options.scale == 0) {
    RansOptions coarse = options, fine = options;
    coarse.scale = 12, fine.scale = 16;
    const size_t room = std::min(options.max_symbols, size_t{1} << coarse.scale);
    if (!escape && used > room) return from_counts(counts, fine);
    const RansModel small = from_counts(counts, coarse), large = from_counts(counts, fine);
    const auto bits = [&](const RansModel& model) {
      BitWriter writer;
      model.write(writer);
      return static_cast<double>(writer.size()) + model.coded_bits(counts);
    };
    return bits(large) < bits(small) * 0.999 ? large : small;
  }

  const size_t most = std::min(options.max_symbols, size_t{1} << options.scale) - (escape ? 1 : 0);
  if (!escape && used > most)
    throw failed("{} symbols do not fit a model of {} without an escape", used, most);
  std::vector<bool> coded(counts.size());
  for (size_t i = 0; i < counts.size(); ++i)
    coded[i] =
        counts[i] > 0 && !(escape && better_escaped(counts[i], total, options.scale, options.escape_bits));
  std::vector<size_t> order;
  for (size_t i = 0; i < counts.size(); ++i)
    if (coded[i]) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return counts[a] < counts[b]; });
  for (size_t i = 0; i + most < order.size(); ++i) coded[order[i]] = false;
  std::vector<uint64_t> weights(counts.begin(), counts.end());
  if (escape) {
    uint64_t escaped = 0;
    for (size_t i = 0; i < counts.size(); ++i)
      if (!coded[i]) escaped += std::exchange(weights[i], 0);
    weights.push_back(escaped);
    coded.push_back(true);
  }
  const bool single = std::count(coded.begin(), coded.end(), true) == 1;
  const unsigned scale = single ? std::min(options.scale, kMaxFrequencyBits - 1) : options.scale;
  return {counts.size(), options.escape_bits, scale, best_frequencies(weights, coded, scale)};
}

void RansModel::write(BitWriter& out) const {
  out.put(static_cast<uint32_t>(alphabet_), kAlphabetBits);
  out.put(escape_bits_, kEscapeWidthBits);
  out.put(scale_, kScaleBits);
  for (size_t i = 0; i < frequencies_.size();) {
    size_t absent = 0;
    while (i + absent < frequencies_.size() && frequencies_[i + absent] == 0) ++absent;
    if (absent >= kManyFrom) {
      absent = std::min(absent, kManyTo);
      out.put(kManyAbsent, kTokenBits);
      out.put(static_cast<uint32_t>(absent - kManyFrom), 12);
      i += absent;
    } else if (absent >= kFewFrom) {
      absent = std::min(absent, kFewTo);
      out.put(kFewAbsent, kTokenBits);
      out.put(static_cast<uint32_t>(absent - kFewFrom), 4);
      i += absent;
    } else {
      const auto width = static_cast<unsigned>(std::bit_width(frequencies_[i]));
      out.put(width, kTokenBits);
      if (width > 1) out.put(frequencies_[i], width - 1);
      ++i;
    }
  }
}

RansModel RansModel::read(BitReader& in) {
  const size_t alphabet = in.get(kAlphabetBits);
  const unsigned escape_bits = in.get(kEscapeWidthBits);
  const unsigned scale = in.get(kScaleBits);
  if (alphabet > kMaxAlphabet)
    throw bad_input("a model with an alphabet of {} symbols; at most {} are possible", alphabet,
                    kMaxAlphabet);
  if (escape_bits > kMaxEscapeBits)
    throw bad_input("a model with escaped values of {} bits; at most {} are possible", escape_bits,
                    kMaxEscapeBits);
  if (scale < kMinRansScale || scale > kMaxRansScale)
    throw bad_input("a model of scale {}; it must be {} to {}", scale, kMinRansScale, kMaxRansScale);
  const size_t symbols = alphabet + (escape_bits > 0 ? 1 : 0);
  const uint64_t whole = uint64_t{1} << scale;
  std::vector<uint32_t> frequencies;
  uint64_t sum = 0;
  while (frequencies.size() < symbols) {
    const unsigned token = in.get(kTokenBits);
    size_t times = 1;
    uint32_t frequency = 0;
    if (token == kFewAbsent)
      times = in.get(4) + kFewFrom;
    else if (token == kManyAbsent)
      times = in.get(12) + kManyFrom;
    else if (token > kManyAbsent)
      throw bad_input("a model has the token {}, which has no meaning", token);
    else if (token > 0)
      frequency = uint32_t{1} << (token - 1) | in.get(token - 1);
    if (times > symbols - frequencies.size())
      throw bad_input("a model has frequencies for more than its {} symbols", symbols);
    frequencies.insert(frequencies.end(), times, frequency);
    sum += frequency;
    if (sum > whole) throw bad_input("the frequencies of a model sum up to more than {}", whole);
  }
  if (sum != 0 && sum != whole) throw bad_input("the frequencies of a model sum up to {} of {}", sum, whole);
  if (escape_bits > 0 && frequencies.back() == 0) throw bad_input("the escape of a model has no frequency");
  return {alphabet, escape_bits, scale, std::move(frequencies)};
}

double RansModel::coded_bits(std::span<const uint64_t> counts) const {
  if (counts.size() != alphabet_)
    throw failed("counts of {} symbols, but a model for {}", counts.size(), alphabet_);
  double bits = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const bool escaped = frequencies_[i] == 0;
    if (escaped && !has_escape()) throw failed("the model has no frequency for symbol {} and no escape", i);
    const uint32_t frequency = escaped ? frequencies_[alphabet_] : frequencies_[i];
    bits += static_cast<double>(counts[i]) * (scale_ - std::log2(frequency) + (escaped ? escape_bits_ : 0));
  }
  return bits;
}

void check_alike(std::span<const RansModel> models) {
  if (models.empty()) throw failed("no model to code with");
  for (const RansModel& model : models)
    if (model.alphabet() != models.front().alphabet() || model.escape_bits() != models.front().escape_bits())
      throw failed("models of alphabets {} and {} cannot take turns", models.front().alphabet(),
                   model.alphabet());
}

void check_runs(std::span<const RansRun> runs, size_t models, size_t symbols) {
  size_t sum = 0;
  for (const RansRun& run : runs) {
    if (run.model >= models) throw failed("a run of model {} of {}", run.model, models);
    sum += run.symbols;
  }
  if (sum != symbols) throw failed("runs of {} symbols for segments of {}", sum, symbols);
}

}  // namespace kvcodec
