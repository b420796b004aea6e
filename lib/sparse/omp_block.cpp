#include "lib/sparse/omp_block.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/sparse/omp_decisions.hpp"

namespace kvcodec {

using omp_kernels::kDoubleLanes;
using omp_kernels::kScreen;

namespace {

/// Signals that share one pass over the dictionary. Enough for the dictionary, read from the third-level
/// cache, not to matter; 128 rows of 8192 correlations are 4 MiB per thread.
constexpr size_t kBlock = 128;

/// The same without a Gram matrix, where the state of every signal of the block is held at once.
constexpr size_t kDirectBlock = 32;

/// From this many atoms per signal on, following all correlations in bytes takes longer than following few of
/// them in words.
constexpr size_t kLazyFrom = 96;

/// kIndependent where the error that is left decides: among many equals, in a span that is nearly exhausted,
/// atoms that lie nearly in the span of those taken may be chosen, and rounding grows with the inverse.
constexpr double kIndependentByError = 1e-3;

/// From this number of candidates on it pays to compute all correlations anew, which gets rid of the errors
/// of those that are there: one candidate takes as long as one atom.
size_t many_candidates(size_t atoms) { return std::max<size_t>(48, atoms / 16); }

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
  const uint64_t screen =
      omp.has_gram() ? (s * sizeof(int16_t) + 3 * sizeof(float)) * omp.stride_ + s * s * sizeof(double) : 0;
  return signals * (2 * omp.row_stride_ + omp.stride_) * sizeof(float) + pursuits * s * s * sizeof(double) +
         screen;
}

OmpBlock::OmpBlock(const Omp& omp, const OmpOptions& options)
    : omp_(omp),
      kernels_(omp_kernels::best()),
      capacity_(static_cast<size_t>(options.sparsity)),
      stride_(round_up(capacity_, kDoubleLanes)),
      target_(options.error_target * options.error_target),
      doubt_(options.error_target > 0 ? kEnergyDoubtForTarget : kEnergyDoubt),
      pursuits_(omp.has_gram() ? 1 : kDirectBlock),
      exponents_(signals_of(omp)),
      signals_(signals_of(omp) * omp.row_stride_),
      start_errors_(signals_of(omp)),
      correlations_(signals_of(omp) * omp.stride_),
      g_(stride_),
      v_(stride_),
      w_(stride_),
      residual_double_(omp.row_stride_),
      peaks_(omp.stride_ / kScreen),
      products_(std::max(capacity_, size_t{1})) {
  if (omp.has_gram()) {
    const GramView gram{.words = omp.gram_.data(),
                        .atoms = omp.atoms_,
                        .stride = omp.stride_,
                        .peaks = omp.gram_peaks_.data(),
                        .energies = omp.energies_.data(),
                        .entry_error = 0.5 / kWordUnit + rounding_of_dot(omp.width_)};
    if (options.selection == AtomSelection::ols)
      by_error_ = std::make_unique<ErrorScreen>(gram, capacity_, kIndependentByError);
    else if (!omp.gram_bytes_.empty() && kernels_.screen_bytes && capacity_ < kLazyFrom &&
             ByteScreen::fits(capacity_))
      by_correlation_ =
          std::make_unique<ByteScreen>(gram, omp.gram_bytes_.data(), omp.byte_units_.data(), capacity_);
    else
      by_correlation_ = std::make_unique<LazyScreen>(gram, capacity_);
  } else {
    residuals_.resize(signals_.size());
  }
  for (Pursuit& p : pursuits_) {
    p.rows.resize(capacity_ + 1);
    p.z.resize(capacity_);
    p.x.resize(capacity_);
    p.x_float.resize(capacity_);
    p.inverse.resize(capacity_ * stride_);
    p.residual.resize(omp.row_stride_);
  }
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
      exclude_again(p);
    }
  }
  for (size_t i = 0; i < count; ++i) finish(pursuits_[i], first + i, codes);
}

/// Fills correlations_ with the inner products of all atoms and some rows, and start_errors_ with the bounds
/// of their errors.
void OmpBlock::correlate(const AlignedVector<float>& rows, size_t count) {
  gemm(1, {rows.data(), count, omp_.width_, omp_.row_stride_}, Transpose::no, omp_.padded_atoms(),
       Transpose::yes, 0, {correlations_.data(), count, omp_.atoms_, omp_.stride_});
  for (size_t i = 0; i < count; ++i)
    start_errors_[i] = rounding_of_dot(omp_.width_) *
                       std::sqrt(energy_of(std::span(rows.data() + i * omp_.row_stride_, omp_.row_stride_)));
}

/// Starts the pursuit of the block's signal `index`.
void OmpBlock::begin(Pursuit& p, size_t index) {
  p.y = signals_.data() + index * omp_.row_stride_;
  p.exponent = exponents_[index];
  p.energy = p.left = energy_of(std::span(p.y, omp_.row_stride_));
  p.count = 0;
  p.start = correlations_.data() + index * omp_.stride_;
  p.start_error = start_errors_[index];
  p.residual_known = true;
  std::copy_n(p.y, omp_.row_stride_, p.residual.data());
  p.ids.clear();
  p.excluded.clear();
  const double norm = std::sqrt(p.energy);
  if (by_correlation_) by_correlation_->begin(p.start, p.start_error);
  if (by_error_) by_error_->begin(p.start, p.start_error + 2 * comparison_error(capacity_) * norm, norm);
}

/// Bound of the error of what decides, as a fraction of the signal's norm: inner products in float with a
/// residual in float that is the sum of so many rows.
double OmpBlock::comparison_error(size_t rows) const { return 2 * rounding_of_dot(omp_.width_ + rows); }

/// Whether the residual is small enough to stop.
bool OmpBlock::reached(Pursuit& p) {
  if (p.left <= doubt_ * p.energy) p.left = exact_energy(p);
  return p.left <= std::max(target_, kNoise * kNoise) * p.energy;
}

/// Takes one more atom. False if the signal is finished.
bool OmpBlock::advance(Pursuit& p) {
  if (p.count == capacity_ || reached(p)) return false;
  for (;;) {
    const int64_t atom = by_error_ ? select_by_error(p) : select(p);
    if (atom < 0) return false;
    exclude(p, static_cast<uint32_t>(atom));
    if (add(p, static_cast<uint32_t>(atom))) return true;
  }
}

/// Leaves an atom out, taken or refused.
void OmpBlock::exclude(Pursuit& p, uint32_t atom) {
  p.excluded.push_back(atom);
  if (by_correlation_)
    by_correlation_->exclude(atom);
  else if (by_error_)
    by_error_->exclude(atom);
  else
    p.start[atom] = std::numeric_limits<float>::quiet_NaN();
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

/// Computes the correlations of the present residual in float.
void OmpBlock::restart(Pursuit& p) const {
  compute_residual(p);
  const float* rows[64];
  for (size_t first = 0; first < omp_.atoms_; first += std::size(rows)) {
    const size_t count = std::min(std::size(rows), omp_.atoms_ - first);
    for (size_t i = 0; i < count; ++i) rows[i] = omp_.row(first + i);
    kernels_.dots(rows, count, p.residual.data(), omp_.row_stride_, p.start + first);
  }
  exclude_again(p);
}

/// Fills candidates_ with the atoms whose correlation in `start` is within 2 error of the largest. Returns a
/// lower bound of that.
double OmpBlock::look_at_start(const Pursuit& p, double error) {
  kernels_.peaks(p.start, omp_.stride_, peaks_.data());
  const double best = *std::max_element(peaks_.begin(), peaks_.end());
  // Above 0, which is what the padding shows; the comparison in float must not lose an atom.
  const double threshold = std::max(best - 2 * error, double{std::numeric_limits<float>::min()});
  const float limit = std::nextafter(static_cast<float>(threshold), 0.0f);
  candidates_.clear();
  for (size_t t = 0; t < peaks_.size(); ++t) {
    if (!(peaks_[t] >= limit)) continue;
    for (uint32_t bits = kernels_.at_least(p.start + t * kScreen, limit); bits != 0; bits &= bits - 1)
      candidates_.push_back(static_cast<uint32_t>(t * kScreen + static_cast<size_t>(std::countr_zero(bits))));
  }
  return best - error;
}

/// Finds the candidates. Returns a lower bound of the largest correlation.
double OmpBlock::look(Pursuit& p) {
  const double margin = comparison_error(p.count) * std::sqrt(p.energy);
  if (!by_correlation_) return look_at_start(p, margin + p.start_error);
  const std::span<const double> x = std::span(p.x).first(p.count);
  const double sure = by_correlation_->look(x, margin, candidates_);
  if (candidates_.size() <= many_candidates(omp_.atoms_) || by_correlation_->exact()) return sure;
  restart(p);
  by_correlation_->rebase(x);
  return by_correlation_->look(x, margin, candidates_);
}

/// Inner products of the candidates with the residual: the very numbers that decide.
void OmpBlock::compare(Pursuit& p) {
  compute_residual(p);
  candidate_rows_.clear();
  for (const uint32_t atom : candidates_) candidate_rows_.push_back(omp_.row(atom));
  if (products_.size() < candidates_.size()) products_.resize(candidates_.size());
  kernels_.dots(candidate_rows_.data(), candidates_.size(), p.residual.data(), omp_.row_stride_,
                products_.data());
}

/// The atom with the largest correlation, or -1 if there is none above the noise.
int64_t OmpBlock::select(Pursuit& p) {
  const double noise = kNoise * std::sqrt(p.energy), sure = look(p);
  if (candidates_.empty()) return -1;
  if (candidates_.size() == 1 && sure > noise) return candidates_[0];
  compare(p);
  size_t best = 0;
  for (size_t i = 1; i < candidates_.size(); ++i)
    if (std::abs(products_[i]) > std::abs(products_[best])) best = i;
  return std::abs(products_[best]) > noise ? int64_t{candidates_[best]} : -1;
}

/// The atom that lowers the error most, or -1 if none lowers it by more than noise.
int64_t OmpBlock::select_by_error(Pursuit& p) {
  const double noise = kNoise * std::sqrt(p.energy);
  for (;;) {
    const double sure = by_error_->look(candidates_);
    if (candidates_.empty()) return -1;
    if (candidates_.size() == 1 && sure > noise) return candidates_[0];
    compare(p);
    const std::vector<float> products(products_.begin(),
                                      products_.begin() + static_cast<ptrdiff_t>(candidates_.size()));
    int64_t winner = -1;
    double best = 0;
    bool refused = false;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const double outside = project(p, candidates_[i]);
      if (!(outside > kIndependentByError * omp_.energies_[candidates_[i]])) {
        exclude(p, candidates_[i]);
        refused = true;
        continue;
      }
      if (!(std::abs(products[i]) > noise)) continue;  // rounding, however little of the atom is left
      const double gain = double{products[i]} * products[i] / outside;
      if (gain > best) best = gain, winner = candidates_[i];
    }
    // Atoms that depend on those taken may have hidden others.
    if (winner >= 0 || !refused) return winner;
  }
}

/// Coordinates v_ of an atom in the basis of those taken, w_ = U v_, and its product with the signal
/// along_y_. Returns its energy outside their span.
double OmpBlock::project(Pursuit& p, uint32_t atom) {
  const size_t k = p.count;
  p.rows[k] = p.y;  // for the length of the next call: one more product
  if (products_.size() <= k) products_.resize(k + 1);
  kernels_.dots(p.rows.data(), k + 1, omp_.row(atom), omp_.row_stride_, products_.data());
  along_y_ = products_[k];
  std::fill(g_.begin(), g_.end(), 0.0);
  for (size_t i = 0; i < k; ++i) g_[i] = products_[i];
  kernels_.apply_both(p.inverse.data(), stride_, k, g_.data(), v_.data(), w_.data());
  double inside = 0;
  for (size_t i = 0; i < k; ++i) inside += v_[i] * v_[i];
  return omp_.energies_[atom] - inside;
}

/// Adds an atom to those taken and fits x anew. False, with nothing changed, if it depends on them.
bool OmpBlock::add(Pursuit& p, uint32_t atom) {
  const size_t k = p.count;
  if (by_correlation_) by_correlation_->expect(atom);
  if (by_error_) by_error_->expect(atom);
  const double outside = project(p, atom);
  if (!(outside > (by_error_ ? kIndependentByError : kIndependent) * omp_.energies_[atom])) return false;
  double explained = 0;
  for (size_t i = 0; i < k; ++i) explained += v_[i] * p.z[i];
  const double norm = std::sqrt(outside);
  double* column = p.inverse.data() + k * stride_;
  for (size_t i = 0; i < k; ++i) column[i] = -w_[i] / norm;
  column[k] = 1 / norm;
  std::fill(column + k + 1, column + stride_, 0.0);
  p.z[k] = (along_y_ - explained) / norm;
  p.x[k] = 0;
  for (size_t i = 0; i <= k; ++i) p.x[i] += p.z[k] * column[i];
  p.left -= p.z[k] * p.z[k];
  p.rows[k] = omp_.row(atom);
  p.ids.push_back(atom);
  p.count = k + 1;
  p.residual_known = false;
  if (p.count == capacity_) return true;  // nobody looks any more
  if (by_correlation_) by_correlation_->add(atom, std::span(p.x).first(p.count));
  if (by_error_) by_error_->add(atom, std::span(column, p.count), p.z[k]);
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
