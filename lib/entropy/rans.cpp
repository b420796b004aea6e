#include "lib/entropy/rans.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/entropy/rans_kernels.hpp"

namespace kvcodec {

/// Counts up to here are exact in double, and so are their sums.
constexpr uint64_t kMaxTotal = uint64_t{1} << 53;

/// Fields and tokens of a written model (rans.hpp).
constexpr unsigned kScaleBits = 5, kTokenBits = 5, kFewAbsent = 17, kManyAbsent = 18;
/// Frequencies stay below 2^16, which is what decoders' tables hold: a model of one symbol has a scale below 16.
constexpr unsigned kMaxFrequencyBits = 16;
/// About what a frequency takes in a written model: a token and half the bits of a rare symbol's frequency.
constexpr double kFrequencyBits = 8;

/// The bits that one more (or one less) of frequency saves (or costs) a symbol that occurs `count` times.
static double gain(uint64_t count, uint32_t frequency) {
  return static_cast<double>(count) * std::log2(1.0 + 1.0 / frequency);
}

/// Frequencies of sum 2^scale for the symbols that are coded, each at least 1, with the fewest bits: rounded first, then changed one by one
/// where that costs least. Costs are convex in every frequency, so when no single exchange gains any more, nothing does.
static std::vector<uint32_t> best_frequencies(std::span<const uint64_t> counts,
                                              const std::vector<bool>& coded, unsigned scale) {
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

  // Heaps of (what a step gains or, negative, loses; the symbol), ties to the smaller one; entries that are out of date are skipped.
  using Step = std::pair<double, ptrdiff_t>;
  std::priority_queue<Step> increments, decrements;
  const auto increment = [&](size_t i) { return gain(counts[i], frequencies[i]); };
  const auto decrement = [&](size_t i) { return -gain(counts[i], frequencies[i] - 1); };
  const auto symbol_of = [](const Step& step) { return static_cast<size_t>(-step.second); };
  const auto push = [&](size_t i) {
    increments.emplace(increment(i), -static_cast<ptrdiff_t>(i));
    if (frequencies[i] > 1) decrements.emplace(decrement(i), -static_cast<ptrdiff_t>(i));
  };
  for (size_t i = 0; i < counts.size(); ++i)
    if (coded[i]) push(i);
  const auto drop_stale = [&] {
    while (!increments.empty() && increments.top().first != increment(symbol_of(increments.top())))
      increments.pop();
    while (!decrements.empty() && (frequencies[symbol_of(decrements.top())] == 1 ||
                                   decrements.top().first != decrement(symbol_of(decrements.top()))))
      decrements.pop();
  };
  const auto change = [&](size_t i, int by) {
    frequencies[i] = static_cast<uint32_t>(static_cast<int64_t>(frequencies[i]) + by);
    sum += by;
    push(i);
    drop_stale();
  };
  drop_stale();
  while (sum < wanted) change(symbol_of(increments.top()), 1);
  while (sum > wanted) change(symbol_of(decrements.top()), -1);
  while (!decrements.empty() && increments.top().first + decrements.top().first > 0) {
    const size_t up = symbol_of(increments.top()), down = symbol_of(decrements.top());
    change(up, 1);
    change(down, -1);
  }
  return frequencies;
}

/// True if storing a symbol raw beats giving it a frequency of 1. The frequency costs 1/M of the others'
/// probability and an entry in the model; raw storage costs the raw bits and an escape that is as rare.
static bool better_escaped(uint64_t count, uint64_t total, unsigned scale, unsigned escape_bits) {
  const double share = static_cast<double>(total) * std::exp2(-double(scale)) * 1.4427;  // log2(e)
  return static_cast<double>(count) * escape_bits < share + kFrequencyBits;
}

RansModel RansModel::from_counts(std::span<const uint64_t> counts, const RansOptions& options) {
  check_alphabet(counts.size(), options.escape_bits, ErrorKind::failed);
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

  const size_t bound = std::min(options.max_symbols, size_t{1} << options.scale) - (escape ? 1 : 0);
  if (!escape && used > bound)
    throw failed("{} symbols do not fit a model of {} without an escape", used, bound);
  std::vector<bool> coded(counts.size());
  for (size_t i = 0; i < counts.size(); ++i)
    coded[i] =
        counts[i] > 0 && !(escape && better_escaped(counts[i], total, options.scale, options.escape_bits));
  keep_most_frequent(counts, bound, coded);
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
  write_alphabet(out, alphabet_, escape_bits_);
  out.put(scale_, kScaleBits);
  for (size_t i = 0; i < frequencies_.size();) {
    size_t absent = 0;
    while (i + absent < frequencies_.size() && frequencies_[i + absent] == 0) ++absent;
    if (const size_t written = write_absent(out, absent, kFewAbsent, kTokenBits); written > 0) {
      i += written;
      continue;
    }
    const auto width = static_cast<unsigned>(std::bit_width(frequencies_[i]));
    out.put(width, kTokenBits);
    if (width > 1) out.put(frequencies_[i], width - 1);
    ++i;
  }
}

RansModel RansModel::read(BitReader& in) {
  const auto [alphabet, escape_bits] = read_alphabet(in);
  const unsigned scale = in.get(kScaleBits);
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
    if (token > kManyAbsent) throw bad_input("a model has the token {}, which has no meaning", token);
    if (token >= kFewAbsent)
      times = read_absent(in, token == kManyAbsent);
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

// Encoding -----------------------------------------------------------------------------------------

using namespace rans_kernels;

/// Throws Error(failed) unless there is a model, and all have the same alphabet and escape_bits.
static void check_alike(std::span<const RansModel> models) {
  if (models.empty()) throw failed("no model to code with");
  for (const RansModel& model : models)
    if (model.alphabet() != models.front().alphabet() || model.escape_bits() != models.front().escape_bits())
      throw failed("models of alphabets {} and {} cannot take turns", models.front().alphabet(),
                   model.alphabet());
}

/// The runs of segments of `symbols` symbols, or `whole`, which is one run, where none are given. Throws Error(failed)
/// unless the runs are of models that there are, and have so many symbols.
static std::span<const RansRun> checked_runs(std::span<const RansRun> runs, const RansRun& whole,
                                             size_t models) {
  if (runs.empty()) return {&whole, 1};
  size_t sum = 0;
  for (const RansRun& run : runs) {
    if (run.model >= models) throw failed("a run of model {} of {}", run.model, models);
    sum += run.symbols;
  }
  if (sum != whole.symbols) throw failed("runs of {} symbols for segments of {}", sum, whole.symbols);
  return runs;
}

static_assert(std::endian::native == std::endian::little, "words are copied as they lie in memory");

__extension__ using Uint128 = unsigned __int128;

RansEncoder::RansEncoder(std::span<const RansModel> models) {
  check_alike(models);
  escape_bits_ = models.front().escape_bits(), escape_ = models.front().alphabet();
  symbols_ = models.front().symbols();
  for (const RansModel& model : models) {
    const uint64_t whole = uint64_t{1} << model.scale();
    for (size_t symbol = 0; symbol < symbols_; ++symbol) {
      Step& step = steps_.emplace_back();
      const uint64_t frequency = model.frequency(symbol);
      if (frequency == 0) continue;
      // x' = floor(x / f) * M + x mod f + start = x + start + floor(x / f) * (M - f).
      step.limit = frequency << (32 - model.scale());
      step.complement = static_cast<uint32_t>(whole - frequency);
      step.bias = model.start(symbol);
      // 2^64 / f rounded up: its error times x < 2^32 stays below 1/f, so the high half of the product is exact.
      step.reciprocal = ~uint64_t{0} / frequency + 1;
      if (frequency == 1) {
        // 2^64 does not fit. The largest number makes it x - 1 instead of x, and the bias mends that.
        step.reciprocal = ~uint64_t{0};
        step.bias += static_cast<uint32_t>(whole - 1);
      }
    }
  }
}

template <class Symbol>
void RansEncoder::encode(MatrixView<const Symbol> symbols, std::span<const uint32_t> raw,
                         std::span<uint32_t> segment_bytes, std::vector<uint8_t>& out,
                         std::span<const RansRun> given_runs) const {
  const size_t n = symbols.cols();
  const RansRun whole{0, n};
  const auto runs = checked_runs(given_runs, whole, steps_.size() / symbols_);
  if (n > kMaxSegmentSymbols)
    throw failed("a segment of {} symbols; at most {} are possible", n, kMaxSegmentSymbols);
  if (segment_bytes.size() != symbols.rows())
    throw failed("{} segments, but room for the bytes of {}", symbols.rows(), segment_bytes.size());
  std::vector<uint16_t> words(n + 1);  // at most one for each symbol, filled from the end
  for (size_t segment = 0; segment < symbols.rows(); ++segment) {
    const std::span<const Symbol> row = symbols.row(segment);
    size_t escapes = 0, begin = 0;
    for (const RansRun& run : runs) {
      const auto steps = this->steps(run.model);
      for (const Symbol symbol : row.subspan(begin, run.symbols)) {
        if (symbol >= symbols_ || steps[symbol].limit == 0)
          throw failed("the model has no frequency for symbol {}", symbol);
        escapes += symbol == escape_;
      }
      begin += run.symbols;
    }
    uint64_t states[kLanes];
    std::fill_n(states, kLanes, uint64_t{kLowestState});
    uint16_t* next_word = words.data() + n;
    const auto push = [&](uint64_t& state, const Step& step) {
      const bool full = state >= step.limit;
      *next_word = static_cast<uint16_t>(state);
      next_word -= full ? 1 : 0;
      const uint64_t x = full ? state >> 16 : state;
      const auto quotient = static_cast<uint64_t>(Uint128{x} * step.reciprocal >> 64);
      state = x + step.bias + quotient * step.complement;
    };
    // Backwards: the decoder takes the words and gives the symbols in the opposite order.
    size_t end = n;
    for (size_t r = runs.size(); r-- > 0;) {
      const auto steps = this->steps(runs[r].model);
      const std::span<const Symbol> of_run = row.subspan(end - runs[r].symbols, runs[r].symbols);
      const size_t groups = of_run.size() / kLanes;
      for (size_t i = of_run.size(); i > groups * kLanes; --i)
        push(states[(i - 1) % kLanes], steps[of_run[i - 1]]);
      for (size_t group = groups; group > 0; --group)
        for (size_t lane = kLanes; lane-- > 0;)
          push(states[lane], steps[of_run[(group - 1) * kLanes + lane]]);
      end -= of_run.size();
    }
    check_raw(raw, escapes, escape_bits_);
    BitWriter raw_bits;
    for (const uint32_t value : raw.first(escapes)) raw_bits.put(value, escape_bits_);
    raw = raw.subspan(escapes);
    const size_t start = out.size();
    for (const uint64_t state : states)
      for (unsigned shift = 0; shift < 32; shift += 8) out.push_back(static_cast<uint8_t>(state >> shift));
    const auto word_bytes = std::as_bytes(std::span(next_word + 1, words.data() + n + 1));
    const auto* const bytes = reinterpret_cast<const uint8_t*>(word_bytes.data());
    out.insert(out.end(), bytes, bytes + word_bytes.size());
    append_to(out, raw_bits.finish());
    segment_bytes[segment] = static_cast<uint32_t>(out.size() - start);
  }
  if (!raw.empty()) throw failed("{} more raw values than escapes", raw.size());
}

template void RansEncoder::encode(MatrixView<const uint8_t>, std::span<const uint32_t>, std::span<uint32_t>,
                                  std::vector<uint8_t>&, std::span<const RansRun>) const;
template void RansEncoder::encode(MatrixView<const uint16_t>, std::span<const uint32_t>, std::span<uint32_t>,
                                  std::vector<uint8_t>&, std::span<const RansRun>) const;

// Decoding -----------------------------------------------------------------------------------------

template <class Symbol>
void rans_kernels::scalar::decode(const DecodeTable&, Segment<Symbol>*, size_t, size_t) {}

static_assert(kTogether == RansDecoder<uint8_t>::kTogether);

constexpr size_t kStateBytes = kLanes * sizeof(uint32_t);

/// The limits of the narrow table's fields.
constexpr unsigned kNarrowScale = 12;
constexpr size_t kNarrowSymbols = 256;
constexpr uint32_t kNarrowFrequency = 1u << 12;

template <class Symbol>
RansDecoder<Symbol>::Tables::Tables(const RansModel& model) {
  if (model.symbols() > size_t{std::numeric_limits<Symbol>::max()} + 1)
    throw failed("a model of {} symbols does not fit symbols of {} bytes", model.symbols(), sizeof(Symbol));
  uint32_t largest = 0;
  for (size_t symbol = 0; symbol < model.symbols(); ++symbol)
    largest = std::max(largest, model.frequency(symbol));
  if (largest == 0) return;
  const size_t slots = size_t{1} << model.scale();
  if (sizeof(Symbol) == 1 && model.scale() <= kNarrowScale && model.symbols() <= kNarrowSymbols &&
      largest < kNarrowFrequency) {
    narrow.resize(slots);
    for (uint32_t symbol = 0; symbol < model.symbols(); ++symbol)
      for (uint32_t i = 0; i < model.frequency(symbol); ++i)
        narrow[model.start(symbol) + i] = symbol | i << 8 | model.frequency(symbol) << 20;
    return;
  }
  symbols.resize(slots + 1);  // the kernels read two at a time
  ranges.resize(model.symbols());
  for (size_t symbol = 0; symbol < model.symbols(); ++symbol) {
    std::fill_n(symbols.begin() + ptrdiff_t{model.start(symbol)}, model.frequency(symbol),
                static_cast<uint16_t>(symbol));
    ranges[symbol] = model.start(symbol) << 16 | (model.frequency(symbol) & 0xffff);
  }
}

template <class Symbol>
RansDecoder<Symbol>::RansDecoder(std::span<const RansModel> models) : models_(models.begin(), models.end()) {
  check_alike(models);
  for (const RansModel& model : models_) tables_.emplace_back(model);
}

/// One call of decode_segments.
template <class Symbol>
struct RansDecoder<Symbol>::Work {
  std::span<const uint8_t> payload;
  std::span<const uint32_t> segment_bytes;
  std::span<const RansRun> runs;
  MatrixView<Symbol> out;
  std::vector<EscapedValue>& escaped;
  std::vector<size_t> starts = {};  // first byte of each segment

  const uint8_t* end_of(size_t segment) const {
    return payload.data() + starts[segment] + segment_bytes[segment];
  }
  [[noreturn]] void refuse(size_t segment) const {
    throw bad_input("segment {}: its {} bytes do not hold {} symbols exactly", segment,
                    segment_bytes[segment], out.cols());
  }
};

/// Decodes up to kTogether segments, run by run: groups of 8 symbols by the kernels, as long as the payload has
/// words to read for the most that groups can take, the rest in finish_run().
template <class Symbol>
void RansDecoder<Symbol>::decode_group(Work& work, size_t segment, size_t count) const {
  Segment<Symbol> segments[kTogether];
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* const bytes = work.payload.data() + work.starts[segment + i];
    std::memcpy(segments[i].states, bytes, kStateBytes);
    for (const uint32_t state : segments[i].states)
      if (state < kLowestState) work.refuse(segment + i);
    segments[i].words = bytes + kStateBytes;
    segments[i].out = work.out.row(segment + i).data();
  }
  const uint8_t* const end = work.payload.data() + work.payload.size();
  const auto decode = pick(scalar::decode<Symbol>, avx2::decode<Symbol>);
  const auto advance = [&](const DecodeTable& table, Segment<Symbol>* first, size_t together, size_t groups) {
    for (size_t done = 0; done < groups;) {
      size_t safe = groups - done;
      for (size_t i = 0; i < together; ++i)
        safe = std::min(safe, static_cast<size_t>(end - std::min(end, first[i].words)) / kGroupBytes);
      if (safe == 0) return;
      decode(table, first, together, safe);
      done += safe;
    }
  };
  for (size_t begin = 0; const RansRun& run : work.runs) {
    const Tables& tables = tables_[run.model];
    const DecodeTable table{models_[run.model].scale(),
                            tables.narrow.empty() ? nullptr : tables.narrow.data(), tables.symbols.data(),
                            tables.ranges.data()};
    if (run.symbols > 0 && tables.narrow.empty() && tables.symbols.empty())
      throw bad_input("segments of {} symbols, but a model without frequencies", work.out.cols());
    if (count == kTogether)
      advance(table, segments, kTogether, run.symbols / kLanes);
    else
      for (size_t i = 0; i < count; ++i) advance(table, segments + i, 1, run.symbols / kLanes);
    for (size_t i = 0; i < count; ++i) finish_run(work, run, begin, segment + i, segments[i]);
    begin += run.symbols;
  }
  for (size_t i = 0; i < count; ++i) finish(work, segment + i, segments[i]);
}

/// Decodes what the kernels left of a run that begins with symbol `begin`, symbol by symbol.
template <class Symbol>
void RansDecoder<Symbol>::finish_run(const Work& work, const RansRun& run, size_t begin, size_t segment,
                                     Segment<Symbol>& at) const {
  const std::span<Symbol> row = work.out.row(segment).subspan(begin, run.symbols);
  const RansModel& model = models_[run.model];
  const Tables& tables = tables_[run.model];
  const uint32_t mask = (1u << model.scale()) - 1;
  const uint8_t* const end = work.end_of(segment);
  for (auto done = static_cast<size_t>(at.out - row.data()); done < row.size(); done += kLanes) {
    const size_t lanes = std::min(row.size() - done, kLanes);
    for (size_t lane = 0; lane < lanes; ++lane) {
      uint32_t& x = at.states[lane];
      const uint32_t slot = x & mask;
      const size_t symbol = tables.narrow.empty() ? tables.symbols[slot] : tables.narrow[slot] & 0xff;
      row[done + lane] = static_cast<Symbol>(symbol);
      x = model.frequency(symbol) * (x >> model.scale()) + slot - model.start(symbol);
    }
    for (size_t lane = 0; lane < lanes; ++lane)
      if (at.states[lane] < kLowestState) {
        if (at.words >= end || end - at.words < 2) work.refuse(segment);
        at.states[lane] = at.states[lane] << 16 | at.words[0] | static_cast<uint32_t>(at.words[1]) << 8;
        at.words += 2;
      }
  }
  at.out = row.data() + row.size();
}

/// The checks and the raw values, once all symbols are decoded.
template <class Symbol>
void RansDecoder<Symbol>::finish(Work& work, size_t segment, const Segment<Symbol>& at) const {
  const uint8_t* const end = work.end_of(segment);
  // The kernels may have gone on into the next segment.
  const bool at_rest =
      std::all_of(at.states, at.states + kLanes, [](uint32_t x) { return x == kLowestState; });
  if (at.words > end || !at_rest) work.refuse(segment);
  const RansModel& model = models_.front();
  const auto escape = static_cast<Symbol>(model.escape());
  const uint64_t escapes =
      model.has_escape() ? find_escapes<Symbol>(work.out.row(segment), segment, escape, work.escaped) : 0;
  const std::span<const uint8_t> raw(at.words, end);
  const uint64_t raw_bits = escapes * model.escape_bits();
  if (raw.size() != raw_bits / 8 + (raw_bits % 8 != 0)) work.refuse(segment);
  BitReader reader(raw);
  for (EscapedValue& value : std::span(work.escaped).last(escapes))
    value.value = reader.get(model.escape_bits());
}

template <class Symbol>
void RansDecoder<Symbol>::decode_segments(std::span<const uint8_t> payload,
                                          std::span<const uint32_t> segment_bytes, MatrixView<Symbol> out,
                                          std::vector<EscapedValue>& escaped,
                                          std::span<const RansRun> given_runs) const {
  const RansRun whole{0, out.cols()};
  const auto runs = checked_runs(given_runs, whole, models_.size());
  if (segment_bytes.size() != out.rows())
    throw failed("{} segments, but room for {}", segment_bytes.size(), out.rows());
  Work work{payload, segment_bytes, runs, out, escaped};
  uint64_t end = 0;
  for (size_t i = 0; i < segment_bytes.size(); ++i) {
    if (segment_bytes[i] < kStateBytes) work.refuse(i);
    work.starts.push_back(end);
    end += segment_bytes[i];
  }
  if (end > payload.size()) throw bad_input("{} bytes of segments end before byte {}", payload.size(), end);
  for (size_t segment = 0; segment < segment_bytes.size(); segment += kTogether)
    decode_group(work, segment, std::min(segment_bytes.size() - segment, kTogether));
}

template class RansDecoder<uint8_t>;
template class RansDecoder<uint16_t>;

}  // namespace kvcodec
