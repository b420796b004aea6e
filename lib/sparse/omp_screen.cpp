#include "lib/sparse/omp_screen.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/core/aligned.hpp"
#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec {

using omp_kernels::kByteOffset;
using omp_kernels::kDigit;
using omp_kernels::Kernels;
using omp_kernels::kScreen;
using omp_kernels::kTile;

namespace {

constexpr float kLeftOut = std::numeric_limits<float>::quiet_NaN();

/// Integer sums stay below 2^31 if what is multiplied with entries in units of 1 / kWordUnit has units no
/// finer than the largest sum / kSumUnit, where a sum includes the roundings of its weights: 2^31 / kWordUnit
/// = 67108, less a margin for norms. There may be 65536 weights: their roundings take up to half of it.
constexpr double kSumUnit = 64000;

/// Largest weight in 16 bits, less the rounding.
constexpr double kWordWeight = 32000;

/// Relative rounding of sums and products of a few floats.
constexpr double kFloatRounding = 0x1p-22;

/// Tiles that are looked at because they could have the largest value, before all are gone through.
constexpr size_t kFirstTiles = 2;

/// From this many atoms per signal on, following all correlations in bytes takes longer than following few of them in words.
constexpr size_t kLazyFrom = 96;

/// Largest weight in two digits of 7 bits: 63 * kDigit + 63, less the rounding.
constexpr double kByteWeight = 8100;
static_assert(uint64_t{255} * 64 * kDigit * kLazyFrom < uint64_t{1} << 31);

/// From this number of candidates on it pays to screen more finely: comparing one takes m multiplications,
/// words k n of them, with rows that are not in the cache.
size_t many_in_bytes(size_t atoms) { return std::max<size_t>(48, atoms / 40); }

void fetch(const void* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(static_cast<const char*>(data) + i, 0, 2);
}

/// Appends the atoms of a tile that are at least `limit` in magnitude.
void append_at_least(const Kernels& kernels, const float* values, size_t first, float limit,
                     std::vector<uint32_t>& out) {
  for (uint32_t bits = kernels.at_least(values + first, limit); bits != 0; bits &= bits - 1)
    out.push_back(static_cast<uint32_t>(first + static_cast<size_t>(std::countr_zero(bits))));
}

/// Above 0, which is what atoms beyond the last show, and not above the threshold once it is a float.
float limit_of(double threshold) {
  constexpr float kLeast = std::numeric_limits<float>::min();
  return threshold > double{kLeast} ? std::nextafter(static_cast<float>(threshold), 0.0f) : kLeast;
}

/// Serves pursuits without a Gram matrix: in each round, begin() brings the correlations of the residual.
class DirectScreen final : public Screen {
 public:
  explicit DirectScreen(size_t stride) : peaks_(stride / kScreen) {}

  void begin(float* start, double error) override { start_ = start, error_ = error; }
  void exclude(uint32_t atom) override { start_[atom] = kLeftOut; }
  double look(std::span<const double>, double margin, std::vector<uint32_t>& candidates) override {
    kernels_.peaks(start_, peaks_.size() * kScreen, peaks_.data());
    const double best = *std::ranges::max_element(peaks_), error = margin + error_;
    const float limit = limit_of(best - 2 * error);
    candidates.clear();
    for (size_t t = 0; t < peaks_.size(); ++t)
      if (peaks_[t] >= limit) append_at_least(kernels_, start_, t * kScreen, limit, candidates);
    return best - error;
  }

 private:
  const Kernels& kernels_ = omp_kernels::best();
  float* start_ = nullptr;
  double error_ = 0;
  std::vector<float> peaks_;
};

/// Looks at few atoms: for long pursuits. The correlations are those with the signal less sum over the atoms taken of x(i) G(i, j). The
/// values of a tile of atoms follow each new atom at once, with the coefficient that it begins with; what coefficients have changed since
/// is put right later and by tiles, in the order of how large the correlations of a tile could be: by Cauchy and Schwarz a change of the
/// coefficients by dx moves that of atom j by |dx| times the norm of its products with the atoms taken at most. Most tiles wait for many
/// rounds.
class LazyScreen final : public Screen {
 public:
  LazyScreen(const GramView& gram, size_t capacity)
      : gram_(gram), capacity_(capacity), tiles_(gram.stride / kScreen) {}

  void begin(float* start, double error) override {
    start_ = start;
    sum_of_row_peaks_ = 0;
    std::ranges::fill(spread_, 0.0f);
    std::ranges::fill(spreads_, 0.0f);
    rebase({});
    start_error_ = error;
  }

  void rebase(std::span<const double> x) override {
    std::copy_n(start_, gram_.stride, values_.data());
    kernels_.peaks(values_.data(), gram_.stride, peaks_.data());
    std::ranges::fill(rounds_, static_cast<uint32_t>(x.size()));
    std::ranges::fill(errors_, 0.0f);
    std::ranges::copy(x, history_.data() + x.size() * capacity_);
    std::ranges::copy(x, origin_.begin());
    std::ranges::fill(applied_, 0.0f);
    start_error_ = 0;
    magnitude_ = *std::ranges::max_element(peaks_);
  }
  bool exact() const override { return start_error_ == 0; }

  void exclude(uint32_t atom) override {
    start_[atom] = values_[atom] = spread_[atom] = kLeftOut;
    const size_t t = atom / kScreen;
    kernels_.peaks(values_.data() + t * kScreen, kScreen, &peaks_[t]);
  }

  void expect(uint32_t atom) const override { fetch(gram_.row(atom), gram_.stride * sizeof(int16_t)); }

  void add(uint32_t atom, std::span<const double> x) override {
    const size_t last = x.size() - 1;
    origin_[last] = 0;
    applied_[last] = static_cast<float>(x[last]);
    magnitude_ += std::abs(x[last]) * gram_.peaks[atom];
    kernels_.apply_row({gram_.row(atom), gram_.stride, static_cast<float>(applied_[last] / kWordUnit),
                        static_cast<float>(1 / kWordUnit)},
                       values_.data(), spread_.data(), peaks_.data(), spreads_.data());
    const int16_t* row = gram_.row(atom);
    for (size_t t = 0; t < tiles_; ++t)
      std::memcpy(&panels_[t * panel_ + last * kScreen], row + t * kScreen, kScreen * sizeof(int16_t));
    row_peaks_[last] = gram_.peaks[atom];
    sum_of_row_peaks_ += gram_.peaks[atom];
  }

  double look(std::span<const double> x, double margin, std::vector<uint32_t>& candidates) override {
    const auto round = static_cast<uint32_t>(x.size());
    double moved = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      changes_[i] = x[i] - origin_[i];
      moved += std::abs(changes_[i]);
    }
    set_weights(x.size());
    // The error of any value, wherever it comes from: the start, the words, and roundings of what was subtracted one after the other.
    const double common = margin + start_error_ + moved * gram_.entry_error +
                          static_cast<double>(x.size() + 1) * kFloatRounding * magnitude_;
    const double error = common + weights_error_;
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
      const auto next = static_cast<size_t>(std::ranges::max_element(bounds_) - bounds_.begin());
      if (bounds_[next] < 0) break;
      best = std::max(best, look_at(next, round));
    }
    const double slack = common + error;
    auto limit = static_cast<float>((best - slack) * 0.9999);
    for (size_t t = 0; t < tiles_; ++t) {
      if (bounds_[t] < 0 || bounds_[t] < limit) continue;
      if (look_at(t, round) <= best) continue;
      best = peaks_[t];
      limit = static_cast<float>((best - slack) * 0.9999);
    }
    std::ranges::copy(x, history_.data() + round * capacity_);
    candidates.clear();
    limit = limit_of(best - 2 * error);
    for (const size_t t : fresh_)
      if (peaks_[t] >= limit) append_at_least(kernels_, values_.data(), t * kScreen, limit, candidates);
    std::ranges::sort(candidates);
    return best - error;
  }

 private:
  /// The distance of the coefficients from those of a round (values follow applied_ by themselves), and a
  /// little more for the roundings of what it is multiplied with.
  float distance(size_t round, std::span<const double> x) const {
    const double* then = history_.data() + round * capacity_;
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double change = i < round ? x[i] - then[i] : x[i] - origin_[i] - double{applied_[i]};
      sum += change * change;
    }
    return static_cast<float>(1.0001 * std::sqrt(sum));
  }

  /// Weights in 16 bits for the changes of so many coefficients: scale_ times the sum of weighted rows is within weights_error_ of the sum
  /// with the changes, for all atoms that are not in a panel themselves.
  void set_weights(size_t count) {
    double largest = 0, magnitude = 0;  // magnitude: bound of the sums
    for (size_t i = 0; i < count; ++i) {
      largest = std::max(largest, std::abs(changes_[i]));
      magnitude += std::abs(changes_[i]) * row_peaks_[i];
    }
    // Roundings of the weights add half of each row's peak to a sum.
    const double bound = kSumUnit - 0.5 * sum_of_row_peaks_;
    const double step =
        std::max({largest / kWordWeight, magnitude / bound, std::numeric_limits<double>::min()});
    const double inverse = largest > 0 ? 1 / step : 0;
    std::fill_n(weights_.begin(), (count + 1) / 2, 0u);
    for (size_t i = 0; i < count; ++i) {
      const auto weight = static_cast<int16_t>(std::nearbyint(changes_[i] * inverse));
      weights_[i / 2] |= uint32_t{static_cast<uint16_t>(weight)} << (16 * (i % 2));
    }
    scale_ = static_cast<float>(step / kWordUnit);
    weights_error_ = 0.5 * step * sum_of_row_peaks_ + kFloatRounding * magnitude;
  }

  /// Brings a tile up to date. Returns its largest value.
  float look_at(size_t tile, uint32_t round) {
    peaks_[tile] = kernels_.screen(start_ + tile * kScreen, &panels_[tile * panel_], weights_.data(),
                                   (round + 1) / 2, scale_, values_.data() + tile * kScreen);
    rounds_[tile] = round;
    errors_[tile] = static_cast<float>(1.0001 * weights_error_);
    bounds_[tile] = -1;
    fresh_.push_back(tile);
    return peaks_[tile];
  }

  const GramView gram_;
  const Kernels& kernels_ = omp_kernels::best();
  const size_t capacity_, tiles_;
  /// Words of a panel: an odd number of lines, so that tiles do not compete for the same places of a cache.
  const size_t panel_ = ((capacity_ + 1) / 2 * 2 + 1) * kScreen;
  /// The words of the Gram matrix's rows of the atoms taken, [tiles][rows][kScreen], so that one tile of all rows lies together.
  AlignedVector<int16_t> panels_ = AlignedVector<int16_t>(tiles_ * panel_);
  std::vector<double> row_peaks_ = std::vector<double>(capacity_);
  double sum_of_row_peaks_ = 0, weights_error_ = 0;
  std::vector<uint32_t> weights_ = std::vector<uint32_t>((capacity_ + 1) / 2);  // of two rows each
  float scale_ = 0;                                                             // of the weighted sums
  float* start_ = nullptr;
  double start_error_ = 0;
  double magnitude_ = 0;                                        // bound of what values are made of
  std::vector<float> applied_ = std::vector<float>(capacity_);  // coefficients with which values follow atoms
  std::vector<double> origin_ = std::vector<double>(capacity_);  // coefficients that start belongs to
  AlignedVector<float> values_ = AlignedVector<float>(gram_.stride);
  AlignedVector<float> spread_ = values_;  // energy of each atom's products with those taken
  std::vector<float> peaks_ = std::vector<float>(tiles_), spreads_ = peaks_;  // largest of tiles; as norms
  std::vector<uint32_t> rounds_ = std::vector<uint32_t>(tiles_);  // atoms taken at the last look at a tile
  std::vector<float> errors_ = peaks_;                            // of values, by that look
  std::vector<double> history_ = std::vector<double>((capacity_ + 1) * capacity_);  // coefficients by round
  std::vector<double> changes_ = origin_;
  std::vector<float> distances_ = std::vector<float>(capacity_ + 1);  // of the coefficients since each round
  std::vector<float> moves_ = peaks_;                                 // since each tile's round
  std::vector<float> bounds_ = peaks_;                                // of tiles that are not up to date
  std::vector<size_t> fresh_;                                         // tiles that are
};

/// Looks at all atoms with a Gram matrix in bytes, each row in units of its own: for short pursuits, where processors multiply bytes fast.
class ByteScreen final : public Screen {
 public:
  ByteScreen(const GramView& gram, size_t capacity)
      : gram_(gram), origin_(capacity), high_((capacity + 3) / 4) {}

  void begin(float* start, double error) override {
    start_ = start;
    magnitude_ = 0;
    full_ = 0;
    ids_.clear();
    start_error_ = error;
  }

  void rebase(std::span<const double> x) override {
    std::ranges::copy(x, origin_.begin());
    start_error_ = 0;
  }
  bool exact() const override { return start_error_ == 0; }
  void exclude(uint32_t atom) override { start_[atom] = kLeftOut; }
  void add(uint32_t atom, std::span<const double> x) override {
    ids_.push_back(atom);
    origin_[x.size() - 1] = 0;
  }
  void expect(uint32_t atom) const override { fetch(bytes_of(atom), gram_.stride); }

  double look(std::span<const double> x, double margin, std::vector<uint32_t>& candidates) override {
    const double sure = collect(screen(x) + margin, candidates);
    if (candidates.size() < many_in_bytes(gram_.atoms)) return sure;
    rebase_in_words(x);
    return collect(margin, candidates);
  }

 private:
  const uint8_t* bytes_of(uint32_t atom) const { return gram_.bytes + atom * gram_.stride; }

  /// Takes the values of the start.
  double take_start() {
    from_bytes_ = false;
    for (size_t t = 0; t < peaks_.size(); ++t) {
      float peaks[kTile / kScreen];
      kernels_.peaks(start_ + t * kTile, kTile, peaks);
      peaks_[t] = *std::ranges::max_element(peaks);
      magnitude_ = std::max(magnitude_, double{peaks_[t]});
    }
    return 0;
  }

  /// Fills peaks_. Returns the error that this adds to that of the start.
  double screen(std::span<const double> x) {
    const size_t count = x.size();
    double largest = 0, error = 0, magnitude = 0;
    for (size_t i = 0; i < count; ++i) {
      const double change = std::abs(x[i] - origin_[i]);
      largest = std::max(largest, change * gram_.byte_units[ids_[i]]);
      magnitude += change * gram_.peaks[ids_[i]];
    }
    // All quads before the one that the newest atom is in are stored; that one joins them when it has all four.
    const bool completes = count > 0 && count % 4 == 0 && full_ == count / 4 - 1;
    if (largest == 0 && !completes) return take_start();  // at the start
    const double step = std::max(largest / kByteWeight, std::numeric_limits<double>::min());
    int high_sum = 0, low_sum = 0;
    std::ranges::fill(high_, 0u);
    std::ranges::fill(low_, 0u);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t id = ids_[i];
      const double unit = gram_.byte_units[id], weight = std::nearbyint((x[i] - origin_[i]) * unit / step);
      const int digits = static_cast<int>(weight);
      const int high = (digits + kDigit / 2) >> 7, low = digits - high * kDigit;  // low in [-64, 63]
      high_[i / 4] |= uint32_t{static_cast<uint8_t>(high)} << (8 * (i % 4));
      low_[i / 4] |= uint32_t{static_cast<uint8_t>(low)} << (8 * (i % 4));
      high_sum += high, low_sum += low;
      error += step * (std::abs(weight) * (0.5 + gram_.entry_error / unit) + 0.5 * gram_.peaks[id] / unit);
    }
    const size_t quad = (count - 1) / 4, in_last = count - 4 * quad;
    rows_ = {.quads = quads_.data(),
             .capacity = high_.size(),
             .full = quad,
             .last = {},
             .keep = completes,
             .high = high_.data(),
             .low = low_.data(),
             .high_sum = -kByteOffset * high_sum,
             .low_sum = -kByteOffset * low_sum,
             .scale = static_cast<float>(step)};
    for (size_t i = 0; i < 4; ++i)  // the weight of those that are not there is zero
      rows_.last[i] = bytes_of(ids_[4 * quad + std::min(i, in_last - 1)]);
    // Values are made where they are looked at: most tiles are not.
    kernels_.screen_bytes(start_, rows_, 0, gram_.stride, nullptr, peaks_.data());
    if (completes) full_ = quad + 1;
    rows_.keep = false;
    if (largest == 0) return take_start();
    from_bytes_ = true;
    return error + kFloatRounding * (magnitude_ + magnitude);
  }

  /// Finds the atoms that could have the largest value, where values are within start_error_ + error.
  double collect(double error, std::vector<uint32_t>& candidates) {
    error += start_error_;
    const double best = *std::ranges::max_element(peaks_);
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
  void rebase_in_words(std::span<const double> x) {
    if (unused_.empty()) unused_.resize(gram_.stride + 2 * (gram_.stride / kScreen));
    double moved = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const auto change = static_cast<float>(x[i] - origin_[i]);
      moved += std::abs(double{change});
      magnitude_ += std::abs(double{change}) * gram_.peaks[ids_[i]];
      origin_[i] += double{change};
      kernels_.apply_row({gram_.row(ids_[i]), gram_.stride, static_cast<float>(change / kWordUnit), 0},
                         start_, unused_.data(), unused_.data() + gram_.stride,
                         unused_.data() + gram_.stride + gram_.stride / kScreen);
    }
    start_error_ += moved * gram_.entry_error + static_cast<double>(x.size()) * kFloatRounding * magnitude_;
    take_start();
  }

  const GramView gram_;
  const Kernels& kernels_ = omp_kernels::best();
  float* start_ = nullptr;
  double start_error_ = 0, magnitude_ = 0;
  size_t full_ = 0;          // quads that are stored
  bool from_bytes_ = false;  // whether peaks are of start less what rows_ say, or of start
  std::vector<uint32_t> ids_;
  std::vector<double> origin_;  // coefficients that start belongs to
  omp_kernels::ByteRows rows_{};
  std::vector<uint32_t> high_, low_ = high_;
  AlignedVector<uint8_t> quads_ = AlignedVector<uint8_t>(4 * high_.size() * gram_.stride);
  AlignedVector<float> values_ = AlignedVector<float>(gram_.stride);
  std::vector<float> peaks_ = std::vector<float>(gram_.stride / kTile);  // of tiles of kTile
  AlignedVector<float> unused_;
};

}  // namespace

std::unique_ptr<Screen> make_screen(const GramView& gram, size_t capacity) {
  if (!gram.words) return std::make_unique<DirectScreen>(gram.stride);
  if (gram.bytes && omp_kernels::best().screen_bytes && capacity < kLazyFrom)
    return std::make_unique<ByteScreen>(gram, capacity);
  return std::make_unique<LazyScreen>(gram, capacity);
}

}  // namespace kvcodec
