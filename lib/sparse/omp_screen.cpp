#include "lib/sparse/omp_screen.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/sparse/dictionary.hpp"

namespace kvcodec {

using omp_kernels::kByteOffset;
using omp_kernels::kDigit;
using omp_kernels::kScreen;
using omp_kernels::kTile;

namespace {

/// Relative rounding of sums and products of a few floats.
constexpr double kFloatRounding = 0x1p-22;

/// Tiles that are looked at because they could have the largest value, before all are gone through.
constexpr size_t kFirstTiles = 2;

/// An atom depends on others by a part of its own energy, which norms within kNormTolerance of 1 bring below
/// 1; and a margin for rounding.
constexpr double kLeastEnergy = 0.997;
static_assert((1 - kNormTolerance) * (1 - kNormTolerance) > kLeastEnergy);

/// Largest weight in two digits of 7 bits: 63 * kDigit + 63, less the rounding.
constexpr double kByteWeight = 8100;

/// Byte rows are for this many atoms at most: 255 * 64 * kDigit * 1024 < 2^31.
constexpr size_t kByteCapacity = 1024;
static_assert(uint64_t{255} * 64 * kDigit * kByteCapacity < uint64_t{1} << 31);

/// From this number of candidates on it pays to screen more finely: comparing one takes m multiplications,
/// words k n of them, with rows that are not in the cache.
size_t many_in_bytes(size_t atoms) { return std::max<size_t>(48, atoms / 40); }

void fetch(const void* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(static_cast<const char*>(data) + i, 0, 2);
}

/// Atoms of a tile that are at least `limit` in magnitude.
void append_at_least(const omp_kernels::Kernels& kernels, const float* values, size_t first, float limit,
                     std::vector<uint32_t>& out) {
  for (uint32_t bits = kernels.at_least(values + first, limit); bits != 0; bits &= bits - 1)
    out.push_back(static_cast<uint32_t>(first + static_cast<size_t>(std::countr_zero(bits))));
}

/// Above 0, which is what atoms beyond the last show, and not above the threshold once it is a float.
float limit_of(double threshold) {
  constexpr float kLeast = std::numeric_limits<float>::min();
  return threshold > double{kLeast} ? std::nextafter(static_cast<float>(threshold), 0.0f) : kLeast;
}

}  // namespace

GramPanels::GramPanels(const GramView& gram, size_t capacity)
    : gram_(gram),
      // An odd number of lines, so that tiles do not compete for the same places of a cache.
      tile_size_(((capacity + 1) / 2 * 2 + 1) * kScreen),
      peaks_(capacity),
      panels_(gram.stride / kScreen * tile_size_),
      weights_((capacity + 1) / 2) {}

void GramPanels::add(uint32_t atom) {
  const int16_t* row = gram_.row(atom);
  for (size_t t = 0; t < gram_.stride / kScreen; ++t)
    std::memcpy(&panels_[t * tile_size_ + count_ * kScreen], row + t * kScreen, kScreen * sizeof(int16_t));
  peaks_[count_++] = gram_.peaks[atom];
  sum_of_peaks_ += gram_.peaks[atom];
}

void GramPanels::set_weights(std::span<const double> factors) {
  double largest = 0;
  magnitude_ = 0;
  for (size_t i = 0; i < count_; ++i) {
    largest = std::max(largest, std::abs(factors[i]));
    magnitude_ += std::abs(factors[i]) * peaks_[i];
  }
  // Roundings of the weights add half of each row's peak to a sum.
  const double most = kSumUnit - 0.5 * sum_of_peaks_;
  const double step =
      std::max({largest / kWordWeight, magnitude_ / most, std::numeric_limits<double>::min()});
  const double inverse = largest > 0 ? 1 / step : 0;
  std::fill_n(weights_.begin(), pairs(), 0u);
  for (size_t i = 0; i < count_; ++i) {
    const auto weight = static_cast<int16_t>(std::nearbyint(factors[i] * inverse));
    weights_[i / 2] |= uint32_t{static_cast<uint16_t>(weight)} << (16 * (i % 2));
  }
  scale_ = static_cast<float>(step / kWordUnit);
  error_ = 0.5 * step * sum_of_peaks_ + kFloatRounding * magnitude_;
}

LazyScreen::LazyScreen(const GramView& gram, size_t capacity)
    : gram_(gram),
      kernels_(omp_kernels::best()),
      capacity_(capacity),
      tiles_(gram.stride / kScreen),
      panels_(gram, capacity),
      applied_(capacity),
      origin_(capacity),
      values_(gram.stride),
      spread_(gram.stride),
      peaks_(tiles_),
      spreads_(tiles_),
      rounds_(tiles_),
      errors_(tiles_),
      history_((capacity + 1) * capacity),
      changes_(capacity),
      distances_(capacity + 1),
      moves_(tiles_),
      bounds_(tiles_) {}

void LazyScreen::begin(float* start, double error) {
  start_ = start;
  panels_.begin();
  std::fill(spread_.begin(), spread_.end(), 0.0f);
  std::fill(spreads_.begin(), spreads_.end(), 0.0f);
  rebase({});
  start_error_ = error;
}

void LazyScreen::rebase(std::span<const double> x) {
  std::copy_n(start_, gram_.stride, values_.data());
  kernels_.peaks(values_.data(), gram_.stride, peaks_.data());
  std::fill(rounds_.begin(), rounds_.end(), static_cast<uint32_t>(x.size()));
  std::fill(errors_.begin(), errors_.end(), 0.0f);
  std::copy(x.begin(), x.end(), history_.begin() + static_cast<ptrdiff_t>(x.size() * capacity_));
  std::copy(x.begin(), x.end(), origin_.begin());
  std::fill(applied_.begin(), applied_.end(), 0.0f);
  start_error_ = 0;
  magnitude_ = *std::max_element(peaks_.begin(), peaks_.end());
}

void LazyScreen::exclude(uint32_t atom) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  start_[atom] = values_[atom] = spread_[atom] = kNone;
  const size_t t = atom / kScreen;
  kernels_.peaks(values_.data() + t * kScreen, kScreen, &peaks_[t]);
}

void LazyScreen::expect(uint32_t atom) const { fetch(gram_.row(atom), gram_.stride * sizeof(int16_t)); }

void LazyScreen::add(uint32_t atom, std::span<const double> x) {
  const size_t last = x.size() - 1;
  origin_[last] = 0;
  applied_[last] = static_cast<float>(x[last]);
  magnitude_ += std::abs(x[last]) * gram_.peaks[atom];
  kernels_.apply_row(gram_.row(atom), static_cast<float>(applied_[last] / kWordUnit),
                     static_cast<float>(1 / kWordUnit), gram_.stride, values_.data(), spread_.data(),
                     peaks_.data(), spreads_.data());
  panels_.add(atom);
}

/// How far the coefficients are from those of a round (values follow applied_ by themselves), and a little
/// more for the roundings of what it is multiplied with.
float LazyScreen::distance(size_t round, std::span<const double> x) const {
  const double* then = history_.data() + round * capacity_;
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double change = i < round ? x[i] - then[i] : x[i] - origin_[i] - double{applied_[i]};
    sum += change * change;
  }
  return static_cast<float>(1.0001 * std::sqrt(sum));
}

/// Brings a tile up to date. Returns its largest value.
float LazyScreen::look_at(size_t tile, uint32_t round) {
  peaks_[tile] = kernels_.screen(start_ + tile * kScreen, panels_.tile(tile), panels_.weights(),
                                 panels_.pairs(), panels_.scale(), values_.data() + tile * kScreen);
  rounds_[tile] = round;
  errors_[tile] = static_cast<float>(1.0001 * panels_.error());
  bounds_[tile] = -1;
  fresh_.push_back(tile);
  return peaks_[tile];
}

double LazyScreen::look(std::span<const double> x, double margin, std::vector<uint32_t>& candidates) {
  const auto round = static_cast<uint32_t>(x.size());
  double moved = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    changes_[i] = x[i] - origin_[i];
    moved += std::abs(changes_[i]);
  }
  panels_.set_weights(changes_);
  // What any value may be off, wherever it comes from: the start, the words, and roundings of what was
  // subtracted one after the other.
  const double common = margin + start_error_ + moved * gram_.entry_error +
                        static_cast<double>(x.size() + 1) * kFloatRounding * magnitude_;
  const double error = common + panels_.error();
  float best = 0;  // of tiles that are up to date
  fresh_.clear();
  std::fill_n(distances_.begin(), round + 1, -1.0f);
  for (size_t t = 0; t < tiles_; ++t) {
    float& known = distances_[rounds_[t]];
    if (known < 0) known = distance(rounds_[t], x);
    moves_[t] = known;
    if (rounds_[t] != round) continue;
    best = std::max(best, peaks_[t]);
    fresh_.push_back(t);
  }
  for (size_t t = 0; t < tiles_; ++t) bounds_[t] = peaks_[t] + errors_[t] + moves_[t] * spreads_[t];
  for (const size_t t : fresh_) bounds_[t] = -1;
  // The likely ones first, so that they rule out others.
  for (size_t i = 0; i < kFirstTiles; ++i) {
    const auto next = static_cast<size_t>(std::max_element(bounds_.begin(), bounds_.end()) - bounds_.begin());
    if (bounds_[next] < 0) break;
    best = std::max(best, look_at(next, round));
  }
  const double slack = common + error;
  auto limit = static_cast<float>((best - slack) * 0.9999);
  for (size_t t = 0; t < tiles_; ++t) {
    if (bounds_[t] < 0 || bounds_[t] < limit) continue;
    const float* values = values_.data() + t * kScreen;
    if (errors_[t] + kernels_.bound(values, spread_.data() + t * kScreen, moves_[t]) < limit) continue;
    if (look_at(t, round) <= best) continue;
    best = peaks_[t];
    limit = static_cast<float>((best - slack) * 0.9999);
  }
  std::copy(x.begin(), x.end(), history_.begin() + static_cast<ptrdiff_t>(round * capacity_));
  candidates.clear();
  limit = limit_of(best - 2 * error);
  for (const size_t t : fresh_)
    if (peaks_[t] >= limit) append_at_least(kernels_, values_.data(), t * kScreen, limit, candidates);
  std::sort(candidates.begin(), candidates.end());
  return best - error;
}

ByteScreen::ByteScreen(const GramView& gram, const uint8_t* bytes, const double* units, size_t capacity)
    : gram_(gram),
      kernels_(omp_kernels::best()),
      bytes_(bytes),
      units_(units),
      origin_(capacity),
      quads_((capacity + 3) / 4 * 4 * gram.stride),
      high_((capacity + 3) / 4),
      low_((capacity + 3) / 4),
      values_(gram.stride),
      peaks_(gram.stride / kTile) {}

bool ByteScreen::fits(size_t capacity) { return capacity <= kByteCapacity; }

void ByteScreen::begin(float* start, double error) {
  start_ = start;
  magnitude_ = 0;
  full_ = 0;
  ids_.clear();
  start_error_ = error;
}

void ByteScreen::rebase(std::span<const double> x) {
  std::copy(x.begin(), x.end(), origin_.begin());
  start_error_ = 0;
}

/// The values are those of the start.
void ByteScreen::take_start() {
  from_bytes_ = false;
  for (size_t t = 0; t < peaks_.size(); ++t) {
    float peaks[kTile / kScreen];
    kernels_.peaks(start_ + t * kTile, kTile, peaks);
    peaks_[t] = *std::max_element(std::begin(peaks), std::end(peaks));
    magnitude_ = std::max(magnitude_, double{peaks_[t]});
  }
}

void ByteScreen::exclude(uint32_t atom) { start_[atom] = std::numeric_limits<float>::quiet_NaN(); }

void ByteScreen::add(uint32_t atom, std::span<const double> x) {
  ids_.push_back(atom);
  origin_[x.size() - 1] = 0;
}

void ByteScreen::expect(uint32_t atom) const { fetch(bytes_ + atom * gram_.stride, gram_.stride); }

double ByteScreen::look(std::span<const double> x, double margin, std::vector<uint32_t>& candidates) {
  const double sure = collect(screen(x) + margin, candidates);
  if (candidates.size() < many_in_bytes(gram_.atoms)) return sure;
  rebase_in_words(x);
  return collect(margin, candidates);
}

/// Fills peaks_. Returns the error that this adds to that of the start.
double ByteScreen::screen(std::span<const double> x) {
  const size_t count = x.size();
  double largest = 0, error = 0, magnitude = 0;
  for (size_t i = 0; i < count; ++i) {
    const double change = std::abs(x[i] - origin_[i]);
    largest = std::max(largest, change * units_[ids_[i]]);
    magnitude += change * gram_.peaks[ids_[i]];
  }
  // All quads before the one that the newest atom is in are stored; that one joins them when it has all four.
  const bool completes = count > 0 && count % 4 == 0 && full_ == count / 4 - 1;
  if (largest == 0 && !completes) {  // at the start
    take_start();
    return 0;
  }
  const double step = std::max(largest / kByteWeight, std::numeric_limits<double>::min());
  int high_sum = 0, low_sum = 0;
  std::fill(high_.begin(), high_.end(), 0u);
  std::fill(low_.begin(), low_.end(), 0u);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t id = ids_[i];
    const double unit = units_[id], weight = std::nearbyint((x[i] - origin_[i]) * unit / step);
    const int digits = static_cast<int>(weight);
    const int high = (digits + kDigit / 2) >> 7, low = digits - high * kDigit;  // low in [-64, 63]
    high_[i / 4] |= uint32_t{static_cast<uint8_t>(high)} << (8 * (i % 4));
    low_[i / 4] |= uint32_t{static_cast<uint8_t>(low)} << (8 * (i % 4));
    high_sum += high, low_sum += low;
    error += step * (std::abs(weight) * (0.5 + gram_.entry_error / unit) + 0.5 * gram_.peaks[id] / unit);
  }
  const size_t quad = (count - 1) / 4, in_last = count - 4 * quad;
  for (size_t i = 0; i < 4; ++i)  // the weight of those that are not there is zero
    rows_.last[i] = bytes_ + ids_[4 * quad + std::min(i, in_last - 1)] * gram_.stride;
  rows_.quads = quads_.data();
  rows_.capacity = high_.size();
  rows_.full = quad;
  rows_.keep = completes;
  rows_.high = high_.data();
  rows_.low = low_.data();
  rows_.high_sum = -kByteOffset * high_sum;
  rows_.low_sum = -kByteOffset * low_sum;
  rows_.scale = static_cast<float>(step);
  // Values are made where they are looked at: most tiles are not.
  kernels_.screen_bytes(start_, rows_, 0, gram_.stride, nullptr, peaks_.data());
  if (completes) full_ = quad + 1;
  rows_.keep = false;
  if (largest == 0) {
    take_start();
    return 0;
  }
  from_bytes_ = true;
  return error + kFloatRounding * (magnitude_ + magnitude);
}

/// The atoms that could have the largest value, where values are within start_error_ + error.
double ByteScreen::collect(double error, std::vector<uint32_t>& candidates) {
  error += start_error_;
  const double best = *std::max_element(peaks_.begin(), peaks_.end());
  const float limit = limit_of(best - 2 * error);
  candidates.clear();
  for (size_t t = 0; t < peaks_.size(); ++t) {
    if (!(peaks_[t] >= limit)) continue;
    const size_t begin = t * kTile, end = begin + kTile;
    if (from_bytes_) kernels_.screen_bytes(start_, rows_, begin, end, values_.data(), peaks_.data());
    for (size_t first = begin; first < end; first += kScreen)
      append_at_least(kernels_, from_bytes_ ? values_.data() : start_, first, limit, candidates);
  }
  return best - error;
}

/// Makes the correlations at x the start, by the Gram matrix in words.
void ByteScreen::rebase_in_words(std::span<const double> x) {
  if (unused_.empty()) unused_.resize(gram_.stride + 2 * (gram_.stride / kScreen));
  double moved = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto change = static_cast<float>(x[i] - origin_[i]);
    moved += std::abs(double{change});
    magnitude_ += std::abs(double{change}) * gram_.peaks[ids_[i]];
    origin_[i] += double{change};
    kernels_.apply_row(gram_.row(ids_[i]), static_cast<float>(change / kWordUnit), 0, gram_.stride, start_,
                       unused_.data(), unused_.data() + gram_.stride,
                       unused_.data() + gram_.stride + gram_.stride / kScreen);
  }
  start_error_ += moved * gram_.entry_error + static_cast<double>(x.size()) * kFloatRounding * magnitude_;
  take_start();
}

ErrorScreen::ErrorScreen(const GramView& gram, size_t capacity, double independent)
    : gram_(gram),
      kernels_(omp_kernels::best()),
      tiles_(gram.stride / kScreen),
      independent_(independent),
      panels_(gram, capacity),
      outside_(gram.stride),
      gains_(gram.stride),
      energies_(gram.stride, 1.0f),
      peaks_(tiles_) {
  for (size_t i = 0; i < gram.atoms; ++i) energies_[i] = static_cast<float>(gram.energies[i]);
}

void ErrorScreen::begin(float* start, double error, double norm) {
  correlations_ = start;
  norm_ = norm;
  correlation_error_ = error;
  squared_errors_ = 0;
  count_ = 0;
  panels_.begin();
  outside_ = energies_;
  // Gains are bounds, which are not 0 where there is no atom.
  std::fill(start + gram_.atoms, start + gram_.stride, std::numeric_limits<float>::quiet_NaN());
  panels_.set_weights({});
  project(0);
}

void ErrorScreen::exclude(uint32_t atom) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  correlations_[atom] = outside_[atom] = gains_[atom] = kNone;
  const size_t t = atom / kScreen;
  kernels_.peaks(gains_.data() + t * kScreen, kScreen, &peaks_[t]);
}

void ErrorScreen::expect(uint32_t atom) const { fetch(gram_.row(atom), gram_.stride * sizeof(int16_t)); }

void ErrorScreen::add(uint32_t atom, std::span<const double> column, double along) {
  panels_.add(atom);
  double magnitude = 0;
  for (const double factor : column) magnitude += std::abs(factor);
  panels_.set_weights(column);
  // Products with a basis vector are at most 1 (and a margin for norms).
  const double error = magnitude * (gram_.entry_error + kFloatRounding) + panels_.error() + kFloatRounding;
  ++count_;
  correlation_error_ += std::abs(along) * error + kFloatRounding * norm_;
  squared_errors_ += error * error;
  project(static_cast<float>(along));
}

/// Bound of the error of outside_: | |p + e|^2 - |p|^2 | <= 2 |p| |e| + |e|^2, where |p|^2 <= 1, and a margin
/// for norms.
double ErrorScreen::outside_error() const {
  const double e = std::sqrt(squared_errors_);
  return (2 + e) * e * 1.001 + static_cast<double>(count_ + 1) * kFloatRounding;
}

/// Brings correlations, energies and gains up to date with the weights set.
void ErrorScreen::project(float along) {
  const omp_kernels::Projection projection{
      .weights = panels_.weights(),
      .pairs = panels_.pairs(),
      .scale = panels_.scale(),
      .along = along,
      .correlation_error = static_cast<float>(correlation_error_ * 1.0001),
      .outside_error = static_cast<float>(outside_error()),
      .independent = static_cast<float>(independent_ * kLeastEnergy)};
  for (size_t t = 0; t < tiles_; ++t)
    peaks_[t] = kernels_.project(projection, panels_.tile(t), &correlations_[t * kScreen],
                                 &outside_[t * kScreen], &gains_[t * kScreen]);
}

double ErrorScreen::look(std::vector<uint32_t>& candidates) {
  candidates.clear();
  const double peak = *std::max_element(peaks_.begin(), peaks_.end());
  if (!(peak > 0)) return 0;
  // At least as much as the atom with the largest bound gains at least.
  const auto least_gain = [&](uint32_t atom) {
    const double c = std::max(std::abs(double{correlations_[atom]}) - correlation_error_ * 1.001, 0.0);
    return c * c / (outside_[atom] + outside_error());
  };
  double sure = 0;
  for (size_t t = 0; t < tiles_; ++t) {
    if (double{peaks_[t]} != peak) continue;
    append_at_least(kernels_, gains_.data(), t * kScreen, peaks_[t], candidates);
    for (const uint32_t atom : candidates) sure = std::max(sure, least_gain(atom));
    break;
  }
  candidates.clear();
  const float limit = limit_of(sure);
  for (size_t t = 0; t < tiles_; ++t)
    if (peaks_[t] >= limit) append_at_least(kernels_, gains_.data(), t * kScreen, limit, candidates);
  return std::sqrt(sure);
}

}  // namespace kvcodec
