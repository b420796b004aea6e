#include "lib/sparse/omp_block.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec {

using omp_kernels::kByteOffset;
using omp_kernels::kDigit;
using omp_kernels::kDoubleLanes;
using omp_kernels::kTile;

namespace {

/// Integer sums stay below 2^31 if what is multiplied with entries in units of 1 / kWordUnit has units no
/// finer than its norm / kSumUnit: the sums are inner products of atoms with vectors of that norm, and 2^31 /
/// kWordUnit = 67108, less a margin for roundings and norms.
constexpr double kSumUnit = 64000;

/// Largest weight in 16 bits, and in two digits of 7 bits: 63 * kDigit + 63, less the rounding.
constexpr double kWordWeight = 32000, kByteWeight = 8100;

/// Byte rows are for this many atoms at most: 255 * 64 * kDigit * 1024 < 2^31.
constexpr size_t kByteCapacity = 1024;
static_assert(uint64_t{255} * 64 * kDigit * kByteCapacity < uint64_t{1} << 31);

/// Signals that share one pass over the dictionary. Enough for the dictionary, read from the third-level
/// cache, not to matter; 128 rows of 8192 correlations are 4 MiB per thread.
constexpr size_t kBlock = 128;

/// The same without a Gram matrix, where the state of every signal of the block is held at once.
constexpr size_t kDirectBlock = 32;

/// A new atom must have at least this part of its energy outside the span of those taken. Inner products are
/// exact to some 1e-7, so that at the limit the factorisation still has two good digits; the refinement at
/// the end restores the rest.
constexpr double kIndependent = 1e-5;

/// Residuals and correlations below this part of |y| are float rounding, not signal.
constexpr double kNoise = 1e-6;

/// Energies obtained by subtraction lose their digits below these parts of |y|^2; the residual is then
/// computed. The second is for error targets, which need it to a thousandth.
constexpr double kEnergyDoubt = 1e-6, kEnergyDoubtForTarget = 1e-3;

/// From this number of candidates on it pays to screen more finely: comparing one takes m multiplications,
/// screening in words k n of them, with rows that are not in the cache.
size_t many_candidates(size_t atoms) { return std::max<size_t>(48, atoms / 40); }

/// Signal times a power of two that brings its norm to [1, 2), so that no product over- or underflows; out
/// keeps what stands behind the signal's width. Returns the exponent to undo it.
int scale_signal(std::span<const float> signal, size_t index, float* out) {
  const double energy = energy_of(signal);
  if (!std::isfinite(energy)) throw bad_input("signal {} has values that are not finite", index);
  const int exponent = energy > 0 ? std::ilogb(std::sqrt(energy)) : 0;
  const double factor = std::ldexp(1.0, -exponent);  // a double: floats have no 2^149
  for (size_t i = 0; i < signal.size(); ++i) out[i] = static_cast<float>(signal[i] * factor);
  return exponent;
}

template <class T>
double sum_of_squares(std::span<const T> values) {
  double lanes[kDoubleLanes] = {};
  size_t i = 0;
  for (; i + kDoubleLanes <= values.size(); i += kDoubleLanes)
    for (size_t lane = 0; lane < kDoubleLanes; ++lane)
      lanes[lane] += double{values[i + lane]} * values[i + lane];
  for (; i < values.size(); ++i) lanes[i % kDoubleLanes] += double{values[i]} * values[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

double rounding_of_dot(size_t m) { return (8 + 4 * std::sqrt(static_cast<double>(m))) * 0x1p-24; }

double energy_of(std::span<const float> values) { return sum_of_squares(values); }
double energy_of(std::span<const double> values) { return sum_of_squares(values); }

size_t OmpBlock::signals_of(const Omp& omp) { return omp.has_gram() ? kBlock : kDirectBlock; }

uint64_t OmpBlock::scratch_bytes(const Omp& omp, int64_t sparsity) {
  const uint64_t s = round_up(static_cast<size_t>(sparsity), kDoubleLanes);
  const uint64_t signals = signals_of(omp), pursuits = omp.has_gram() ? 1 : kDirectBlock;
  return signals * (2 * omp.row_stride_ + omp.pairs_ + omp.stride_) * sizeof(float) +
         pursuits * s * s * sizeof(double) + s * omp.stride_;
}

OmpBlock::OmpBlock(const Omp& omp, const OmpOptions& options)
    : omp_(omp),
      kernels_(omp_kernels::best()),
      capacity_(static_cast<size_t>(options.sparsity)),
      stride_(round_up(capacity_, kDoubleLanes)),
      target_(options.error_target * options.error_target),
      doubt_(options.error_target > 0 ? kEnergyDoubtForTarget : kEnergyDoubt),
      use_bytes_(!omp.gram_bytes_.empty() && kernels_.screen_bytes != nullptr && capacity_ <= kByteCapacity),
      pursuits_(omp.has_gram() ? 1 : kDirectBlock),
      exponents_(signals_of(omp)),
      signals_(signals_of(omp) * omp.row_stride_),
      words_(signals_of(omp) * omp.pairs_),
      word_scales_(signals_of(omp)),
      start_errors_(signals_of(omp)),
      correlations_(signals_of(omp) * omp.stride_),
      g_(stride_),
      v_(stride_),
      w_(stride_),
      residual_double_(omp.row_stride_),
      peaks_(omp.stride_ / kTile),
      tile_(kTile),
      products_(std::max(capacity_, size_t{1})) {
  if (!omp.has_gram()) residuals_.resize(signals_.size());
  const size_t quads = (capacity_ + 3) / 4;
  for (Pursuit& p : pursuits_) {
    p.rows.resize(capacity_);
    p.z.resize(capacity_);
    p.x.resize(capacity_);
    p.x_base.resize(capacity_);
    p.x_float.resize(capacity_);
    p.inverse.resize(capacity_ * stride_);
    p.residual.resize(omp.row_stride_);
    if (use_bytes_) p.panels.resize(quads * 4 * omp.stride_);
  }
  byte_rows_.panel_quads = quads;
  high_.resize(quads);
  low_.resize(quads);
}

void OmpBlock::run(MatrixView<const float> signals, size_t first, SparseCodes& codes) {
  const size_t count = signals.rows(), row_stride = omp_.row_stride_;
  for (size_t i = 0; i < count; ++i)
    exponents_[i] = scale_signal(signals.row(i), first + i, signals_.data() + i * row_stride);
  correlate(signals_, count);
  if (omp_.has_gram()) {
    for (size_t i = 0; i < count; ++i) {
      begin(pursuits_[0], i);
      while (advance(pursuits_[0])) continue;
      finish(pursuits_[0], first + i, codes);
    }
    return;
  }
  // Without a Gram matrix all signals of the block take their steps together, and one product serves them
  // all.
  std::vector<size_t> active;
  for (size_t i = 0; i < count; ++i) {
    begin(pursuits_[i], i);
    active.push_back(i);
  }
  while (!active.empty()) {
    std::erase_if(active, [&](size_t i) { return !advance(pursuits_[i]); });
    for (size_t slot = 0; slot < active.size(); ++slot) {
      Pursuit& p = pursuits_[active[slot]];
      compute_residual(p);
      std::copy_n(p.residual.data(), row_stride, residuals_.data() + slot * row_stride);
    }
    correlate(residuals_, active.size());
    for (size_t slot = 0; slot < active.size(); ++slot) {
      Pursuit& p = pursuits_[active[slot]];
      p.start = correlations_.data() + slot * omp_.stride_;
      p.start_error = start_errors_[slot];
      set_base(p);
    }
  }
  for (size_t i = 0; i < count; ++i) finish(pursuits_[i], first + i, codes);
}

/// Fills correlations_ with the inner products of all atoms and some rows, and start_errors_ with the bounds
/// of their errors.
void OmpBlock::correlate(const AlignedVector<float>& rows, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float* row = rows.data() + i * omp_.row_stride_;
    double sum = 0, largest = 0;
    for (size_t c = 0; c < omp_.width_; ++c) {
      const double magnitude = std::abs(double{row[c]});
      sum += magnitude;
      largest = std::max(largest, magnitude);
    }
    const double norm = std::sqrt(energy_of(std::span(row, omp_.row_stride_)));
    const double step = std::max(largest / kWordWeight, norm / kSumUnit);
    uint32_t* words = words_.data() + i * omp_.pairs_;
    const float inverse = step > 0 ? static_cast<float>(1 / step) : 0.0f;
    const auto word_of = [&](size_t c) {
      return static_cast<uint16_t>(static_cast<int16_t>(std::nearbyint(row[c] * inverse)));
    };
    for (size_t pair = 0; pair < omp_.pairs_; ++pair)  // rows have zeros behind their width
      words[pair] = word_of(2 * pair) | uint32_t{word_of(2 * pair + 1)} << 16;
    word_scales_[i] = static_cast<float>(step / kWordUnit);
    // Halves of the two units, and the float roundings on the way.
    start_errors_[i] = 0.5 / kWordUnit * sum + 0.5 * step * omp_.largest_sum_ + 0x1p-21 * norm;
  }
  kernels_.correlate(omp_.words_.data(), omp_.stride_, omp_.pairs_, words_.data(), count, word_scales_.data(),
                     correlations_.data(), omp_.stride_);
}

/// Starts the pursuit of the block's signal `index`.
void OmpBlock::begin(Pursuit& p, size_t index) {
  p.y = signals_.data() + index * omp_.row_stride_;
  p.exponent = exponents_[index];
  p.energy = p.left = energy_of(std::span(p.y, omp_.row_stride_));
  p.count = p.full_panels = 0;
  p.start = correlations_.data() + index * omp_.stride_;
  p.start_error = start_errors_[index];
  p.base_norm = std::sqrt(p.energy);
  p.moved = false;
  p.residual_known = true;
  std::copy_n(p.y, omp_.row_stride_, p.residual.data());
  p.ids.clear();
  p.excluded.clear();
}

/// Whether the residual is small enough to stop.
bool OmpBlock::reached(Pursuit& p) {
  if (p.left <= doubt_ * p.energy) p.left = exact_energy(p);
  return p.left <= std::max(target_, kNoise * kNoise) * p.energy;
}

/// Takes one more atom. False if the signal is finished.
bool OmpBlock::advance(Pursuit& p) {
  if (p.count == capacity_ || reached(p)) return false;
  for (;;) {
    const int64_t atom = select(p);
    if (atom < 0) return false;
    p.excluded.push_back(static_cast<uint32_t>(atom));
    p.start[atom] = std::numeric_limits<float>::quiet_NaN();
    if (add(p, static_cast<uint32_t>(atom))) return true;
  }
}

void OmpBlock::compute_residual(Pursuit& p) const {
  if (p.residual_known) return;
  for (size_t i = 0; i < p.count; ++i) p.x_float[i] = static_cast<float>(p.x[i]);
  kernels_.residual(p.y, p.rows.data(), p.x_float.data(), p.count, omp_.row_stride_, p.residual.data());
  p.residual_known = true;
}

/// Energy of the residual, which stays in residual_double_.
double OmpBlock::exact_energy(const Pursuit& p) {
  kernels_.residual_double(p.y, p.rows.data(), p.x.data(), p.count, omp_.row_stride_,
                           residual_double_.data());
  return energy_of(residual_double_);
}

void OmpBlock::exclude_again(Pursuit& p) const {
  for (const uint32_t atom : p.excluded) p.start[atom] = std::numeric_limits<float>::quiet_NaN();
}

/// Makes the present residual the one that `start` belongs to; `start` holds its correlations already.
void OmpBlock::set_base(Pursuit& p) const {
  p.base_norm = std::sqrt(std::max(p.left, kNoise * kNoise * p.energy));
  std::copy_n(p.x.begin(), p.count, p.x_base.begin());
  p.moved = false;
  exclude_again(p);
}

/// Computes the correlations of the present residual in float.
void OmpBlock::restart(Pursuit& p) const {
  compute_residual(p);
  const float* rows[64];
  for (size_t first = 0; first < omp_.atoms_; first += std::size(rows)) {
    const size_t count = std::min(std::size(rows), omp_.atoms_ - first);
    for (size_t i = 0; i < count; ++i) rows[i] = omp_.row(first + i);
    kernels_.dots(rows, count, p.residual.data(), omp_.row_stride_, p.start + first);
  }
  p.start_error = 0;  // these are the very numbers that decide
  set_base(p);
}

/// Screens with the Gram matrix in words. Returns the error that this adds to that of `start`. With `rebase`
/// the result becomes the new start.
double OmpBlock::screen_words(Pursuit& p, bool rebase) {
  double largest = 0, error = 0;
  for (size_t i = 0; i < p.count; ++i) largest = std::max(largest, std::abs(p.x[i] - p.x_base[i]));
  gram_rows_.clear();
  weights_.clear();
  float scale = 0;
  if (largest > 0) {
    const double step = std::max(largest / kWordWeight, p.base_norm / kSumUnit);
    const double entry_error = 0.5 / kWordUnit + rounding_of_dot(omp_.width_);
    scale = static_cast<float>(step / kWordUnit);
    for (size_t i = 0; i < p.count; ++i) {
      const double weight = std::nearbyint((p.x[i] - p.x_base[i]) / step);
      const uint32_t word = static_cast<uint16_t>(static_cast<int16_t>(weight));
      gram_rows_.push_back(omp_.gram_.data() + p.ids[i] * omp_.stride_);
      if (i % 2 == 0)
        weights_.push_back(word);
      else
        weights_.back() |= word << 16;
      error += step * (std::abs(weight) * entry_error + 0.5 * omp_.gram_peaks_[p.ids[i]]);
    }
    if (p.count % 2 == 1) gram_rows_.push_back(gram_rows_.back());  // its weight is zero
    error += 0x1p-21 * p.base_norm;                                 // float roundings
  }
  word_rows_ = {gram_rows_.data(), weights_.data(), weights_.size(), scale};
  if (!rebase) {
    kernels_.screen(p.start, word_rows_, omp_.stride_, peaks_.data());
    screen_ = Screen::words;
    return error;
  }
  kernels_.rebase(p.start, word_rows_, omp_.stride_, peaks_.data());
  p.start_error += error;
  set_base(p);
  screen_ = Screen::none;
  return 0;
}

/// The same with the Gram matrix in bytes, which never becomes a new start.
double OmpBlock::screen_bytes(Pursuit& p) {
  double largest = 0, error = 0;
  for (size_t i = 0; i < p.count; ++i)
    largest = std::max(largest, std::abs(p.x[i] - p.x_base[i]) * omp_.byte_units_[p.ids[i]]);
  const double step = std::max(largest / kByteWeight, std::numeric_limits<double>::min());
  const double entry_error = 0.5 / kWordUnit + rounding_of_dot(omp_.width_);
  int high_sum = 0, low_sum = 0;
  std::fill(high_.begin(), high_.end(), 0u);
  std::fill(low_.begin(), low_.end(), 0u);
  for (size_t i = 0; i < p.count; ++i) {
    const uint32_t id = p.ids[i];
    const double unit = omp_.byte_units_[id], weight = std::nearbyint((p.x[i] - p.x_base[i]) * unit / step);
    const int digits = static_cast<int>(weight);
    const int high = (digits + kDigit / 2) >> 7, low = digits - high * kDigit;  // low in [-64, 63]
    high_[i / 4] |= uint32_t{static_cast<uint8_t>(high)} << (8 * (i % 4));
    low_[i / 4] |= uint32_t{static_cast<uint8_t>(low)} << (8 * (i % 4));
    high_sum += high, low_sum += low;
    error += step * (std::abs(weight) * (0.5 + entry_error / unit) + 0.5 * omp_.gram_peaks_[id] / unit);
  }
  error += 0x1p-21 * p.base_norm;  // float roundings
  // All quads before the one that the newest atom is in are in panels; that one joins them when it has all
  // four.
  const size_t quad = (p.count - 1) / 4, in_last = p.count - 4 * quad;
  for (size_t i = 0; i < 4; ++i)  // the weight of those that are not there is zero
    byte_rows_.last[i] = omp_.gram_bytes_.data() + p.ids[4 * quad + std::min(i, in_last - 1)] * omp_.stride_;
  byte_rows_.panels = p.panels.data();
  byte_rows_.full = quad;
  byte_rows_.keep = in_last == 4 && p.full_panels == quad;
  byte_rows_.high = high_.data();
  byte_rows_.low = low_.data();
  byte_rows_.high_sum = -kByteOffset * high_sum;
  byte_rows_.low_sum = -kByteOffset * low_sum;
  byte_rows_.scale = static_cast<float>(step);
  kernels_.screen_bytes(p.start, byte_rows_, omp_.stride_, peaks_.data());
  if (byte_rows_.keep) p.full_panels = quad + 1;
  screen_ = Screen::bytes;
  return error;
}

/// Fills candidates_ with the atoms whose screened correlation is at least `threshold`, ascending.
void OmpBlock::collect(const Pursuit& p, double threshold) {
  candidates_.clear();
  // The comparison in float must not lose an atom.
  const float limit = std::nextafter(static_cast<float>(threshold), 0.0f);
  for (size_t t = 0; t < peaks_.size(); ++t) {
    if (!(peaks_[t] >= limit)) continue;
    if (screen_ == Screen::bytes)
      kernels_.screen_bytes_tile(p.start, byte_rows_, t * kTile, tile_.data());
    else
      kernels_.screen_tile(p.start, screen_ == Screen::words ? word_rows_ : omp_kernels::WordRows{},
                           t * kTile, tile_.data());
    uint64_t found[kTile / 64];
    kernels_.at_least(tile_.data(), limit, found);
    for (size_t word = 0; word < std::size(found); ++word)
      for (uint64_t bits = found[word]; bits != 0; bits &= bits - 1)
        candidates_.push_back(
            static_cast<uint32_t>(t * kTile + 64 * word + static_cast<size_t>(std::countr_zero(bits))));
  }
}

/// Finds the candidates. Returns a lower bound of the largest correlation.
double OmpBlock::look(Pursuit& p) {
  const double norm = std::sqrt(p.energy);
  const size_t many = many_candidates(omp_.atoms_);
  const auto candidates_within = [&](double error) {
    // What decides are inner products in float with a residual in float.
    error += p.start_error + 2 * rounding_of_dot(omp_.width_ + p.count) * norm;
    const double best = *std::max_element(peaks_.begin(), peaks_.end());
    // An atom below best - 2 error cannot win. The limit is above 0, which is what the padding shows.
    collect(p, std::max(best - 2 * error, double{std::numeric_limits<float>::min()}));
    return best - error;
  };
  if (!p.moved) {
    kernels_.screen(p.start, omp_kernels::WordRows{}, omp_.stride_, peaks_.data());
    screen_ = Screen::none;
    return candidates_within(0);
  }
  const double error = use_bytes_ ? screen_bytes(p) : screen_words(p, false);
  double sure = candidates_within(error);
  if (candidates_.size() < many) return sure;
  if (use_bytes_) {
    screen_words(p, true);
    sure = candidates_within(0);
  }
  // What is left is the error of the start, in proportion to the norm of a residual of long ago.
  if (candidates_.size() > std::max(many, omp_.atoms_ / 16) && p.start_error > 0) {
    restart(p);
    kernels_.screen(p.start, omp_kernels::WordRows{}, omp_.stride_, peaks_.data());
    sure = candidates_within(0);
  }
  return sure;
}

/// The atom with the largest correlation, or -1 if there is none above the noise.
int64_t OmpBlock::select(Pursuit& p) {
  const double noise = kNoise * std::sqrt(p.energy), sure = look(p);
  if (candidates_.empty()) return -1;
  if (candidates_.size() == 1 && sure > noise) return candidates_[0];
  compute_residual(p);
  candidate_rows_.clear();
  for (const uint32_t atom : candidates_) candidate_rows_.push_back(omp_.row(atom));
  if (products_.size() < candidates_.size()) products_.resize(candidates_.size());
  kernels_.dots(candidate_rows_.data(), candidates_.size(), p.residual.data(), omp_.row_stride_,
                products_.data());
  size_t best = 0;
  for (size_t i = 1; i < candidates_.size(); ++i)
    if (std::abs(products_[i]) > std::abs(products_[best])) best = i;
  return std::abs(products_[best]) > noise ? int64_t{candidates_[best]} : -1;
}

/// Adds an atom to those taken and fits x anew. False, with nothing changed, if it depends on them.
bool OmpBlock::add(Pursuit& p, uint32_t atom) {
  const float* row = omp_.row(atom);
  const size_t k = p.count;
  if (use_bytes_) {  // the next screening begins with its row, which is far away
    const uint8_t* bytes = omp_.gram_bytes_.data() + atom * omp_.stride_;
    for (size_t i = 0; i < omp_.stride_; i += kCacheLine) __builtin_prefetch(bytes + i, 0, 2);
  }
  p.rows[k] = p.y;  // for the length of the next call: one more product
  kernels_.dots(p.rows.data(), k + 1, row, omp_.row_stride_, products_.data());
  const double along_y = products_[k];
  std::fill(g_.begin(), g_.end(), 0.0);
  for (size_t i = 0; i < k; ++i) g_[i] = products_[i];
  kernels_.apply_both(p.inverse.data(), stride_, k, g_.data(), v_.data(), w_.data());
  double inside = 0, explained = 0;
  for (size_t i = 0; i < k; ++i) {
    inside += v_[i] * v_[i];
    explained += v_[i] * p.z[i];
  }
  const double energy = omp_.energies_[atom], outside = energy - inside;
  if (!(outside > kIndependent * energy)) return false;
  const double norm = std::sqrt(outside);
  double* column = p.inverse.data() + k * stride_;
  for (size_t i = 0; i < k; ++i) column[i] = -w_[i] / norm;
  column[k] = 1 / norm;
  std::fill(column + k + 1, column + stride_, 0.0);
  p.z[k] = (along_y - explained) / norm;
  p.x[k] = p.x_base[k] = 0;
  for (size_t i = 0; i <= k; ++i) p.x[i] += p.z[k] * column[i];
  p.left -= p.z[k] * p.z[k];
  p.rows[k] = row;
  p.ids.push_back(atom);
  p.count = k + 1;
  p.moved = true;
  p.residual_known = false;
  return true;
}

/// Refines the coefficients once in double, so that they are the least-squares ones to float precision, and
/// stores the code.
void OmpBlock::finish(Pursuit& p, size_t index, SparseCodes& codes) {
  const size_t k = p.count;
  double left = exact_energy(p);
  std::fill(g_.begin(), g_.end(), 0.0);
  kernels_.dots_double(p.rows.data(), k, residual_double_.data(), omp_.row_stride_, g_.data());
  kernels_.apply_both(p.inverse.data(), stride_, k, g_.data(), v_.data(), w_.data());
  const double factor = std::ldexp(1.0, p.exponent);
  for (size_t i = 0; i < k; ++i) {
    left -= v_[i] * v_[i];
    codes.ids(index, i) = p.ids[i];
    codes.coefficients(index, i) = static_cast<float>((p.x[i] + w_[i]) * factor);
  }
  codes.counts[index] = static_cast<uint32_t>(k);
  codes.residuals[index] = std::sqrt(std::max(left, 0.0)) * factor;
}

}  // namespace kvcodec
