#include "lib/sparse/omp.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec {

using omp_kernels::kDoubleLanes;
using omp_kernels::Kernels;
using omp_kernels::kFloatLanes;
using omp_kernels::kTile;

namespace {

/// Gram entries are stored as multiples of 1 / kGramUnit: below 2^15 with room for norms that are a little
/// above 1.
constexpr double kGramUnit = 32000;
static_assert(kGramUnit * (1 + kNormTolerance) * (1 + kNormTolerance) < 32767);

/// Largest weight of the screening, as a 16-bit integer.
constexpr double kWeightUnit = 32000;

/// The screening's integer sums stay below 2^31 if weights are no finer than |r| / kSumUnit: they stand for d
/// . (r0 - r), at most |r0| because r is r0 less a projection; 2^31 / kGramUnit = 67108, less a margin for
/// roundings and norms.
constexpr double kSumUnit = 64000;

/// Signals that share one product with the dictionary. Enough for the product to run near its peak; 128 rows
/// of 8192 correlations are 4 MiB per thread.
constexpr size_t kBlock = 128;

/// The same without a Gram matrix, where the state of every signal of the block is held at once.
constexpr size_t kDirectBlock = 32;

/// Side of the tiles in which the Gram matrix is computed.
constexpr size_t kGramTile = 256;

/// A new atom must have at least this part of its energy outside the span of those taken. Inner products are
/// exact to some 1e-7, so that at the limit the factorisation still has two good digits; the refinement at
/// the end restores the rest.
constexpr double kIndependent = 1e-5;

/// Residuals and correlations below this part of |y| are float rounding, not signal.
constexpr double kNoise = 1e-6;

/// Energies obtained by subtraction lose their digits below these parts of |y|^2; the residual is then
/// computed. The second is for error targets, which need it to a thousandth.
constexpr double kEnergyDoubt = 1e-6, kEnergyDoubtForTarget = 1e-3;

/// From this number of candidates on, screening starts afresh from the present residual: its error is
/// proportional to the residual it started from.
constexpr size_t kManyCandidates = 24;

/// Rounding of an inner product of m floats, as a part of the product of the norms. Partial sums are a random
/// walk of roundings of 2^-24 each; four standard deviations, and some for the lanes' final sum.
double rounding_of_dot(size_t m) { return (8 + 4 * std::sqrt(static_cast<double>(m))) * 0x1p-24; }

/// Sum of squares, in a fixed order.
template <class T>
double energy_of(std::span<const T> values) {
  double lanes[kDoubleLanes] = {};
  for (size_t i = 0; i < values.size(); ++i) lanes[i % kDoubleLanes] += double{values[i]} * values[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// Writes the signal times a power of two that brings its norm to [1, 2), so that no product over- or
/// underflows; out keeps what stands behind the signal's width. Returns the exponent to undo it.
int scale_signal(std::span<const float> signal, size_t index, float* out) {
  const double energy = energy_of(signal);
  if (!std::isfinite(energy)) throw bad_input("signal {} has values that are not finite", index);
  const int exponent = energy > 0 ? std::ilogb(std::sqrt(energy)) : 0;
  for (size_t i = 0; i < signal.size(); ++i)
    out[i] = static_cast<float>(std::ldexp(double{signal[i]}, -exponent));
  return exponent;
}

}  // namespace

std::vector<OptionField> OmpOptions::fields() {
  return {
      {"sparsity", "atoms per signal at most", &sparsity, 1, 1 << 16},
      {"error-target", "stop when the relative error of a signal is this small; 0 = always take all atoms",
       &error_target, 0, 1}};
}

void OmpOptions::check() const {
  if (!(error_target < 1)) throw usage_error("error-target is {}; it must be below 1", error_target);
}

void Omp::assign(MatrixView<const float> atoms) {
  check_atoms(atoms);
  if (atoms.rows() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    throw bad_input("a dictionary of {} atoms is beyond 31 bits", atoms.rows());
  atoms_ = atoms.rows(), width_ = atoms.cols();
  row_stride_ = round_up(width_, kFloatLanes);
  gram_stride_ = round_up(atoms_, kTile);
  gram_.clear();
  rows_.resize(checked_mul(atoms_, row_stride_));
  energies_.resize(atoms_);
  for (size_t i = 0; i < atoms_; ++i) {
    float* row = rows_.data() + i * row_stride_;
    std::copy_n(atoms.row(i).data(), width_, row);
    std::fill(row + width_, row + row_stride_, 0.0f);
    energies_[i] = energy_of(atoms.row(i));
  }
}

uint64_t Omp::gram_bytes(size_t n) {
  return checked_mul(checked_mul(n, round_up(n, kTile)), sizeof(int16_t));
}

void Omp::build_gram() {
  if (has_gram()) return;
  gram_.resize(gram_bytes(atoms_) / sizeof(int16_t));
  gram_peaks_.resize(atoms_);
  const Kernels& kernels = omp_kernels::best();
  const size_t tiles = (atoms_ + kGramTile - 1) / kGramTile;
  std::vector<std::pair<size_t, size_t>> upper;
  for (size_t i = 0; i < tiles; ++i)
    for (size_t j = i; j < tiles; ++j) upper.emplace_back(i * kGramTile, j * kGramTile);
  parallel_for(upper.size(), 1, [&](size_t index, size_t, int) {
    const auto [i, j] = upper[index];
    const size_t rows = std::min(kGramTile, atoms_ - i), cols = std::min(kGramTile, atoms_ - j);
    Matrix<float> products(rows, cols);
    gemm(1, padded_atoms().rows(i, rows), Transpose::no, padded_atoms().rows(j, cols), Transpose::yes, 0,
         products);
    for (size_t r = 0; r < rows; ++r)
      kernels.round_to_words(products.row(r).data(), kGramUnit, cols, &gram_[(i + r) * gram_stride_ + j]);
    if (i == j) return;
    for (size_t c = 0; c < cols; ++c)
      for (size_t r = 0; r < rows; ++r)
        gram_[(j + c) * gram_stride_ + i + r] = gram_[(i + r) * gram_stride_ + j + c];
  });
  parallel_for(atoms_, 64, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      int16_t* row = &gram_[i * gram_stride_];
      std::fill(row + atoms_, row + gram_stride_, int16_t{0});
      gram_peaks_[i] = kernels.peak_but(row, atoms_, i);
    }
  });
}

bool Omp::gram_pays(uint64_t signals, int64_t s) const {
  // n^2 m / 2 multiplications against n m per signal and atom (the first round needs them either way).
  return static_cast<double>(signals) * static_cast<double>(s - 1) > static_cast<double>(atoms_) / 2;
}

/// Codes one block of signals; holds all scratch memory of one thread.
class OmpBlock {
 public:
  OmpBlock(const Omp& omp, const OmpOptions& options);

  static size_t signals_of(const Omp& omp) { return omp.has_gram() ? kBlock : kDirectBlock; }

  void run(MatrixView<const float> signals, size_t first, SparseCodes& codes);

 private:
  /// The pursuit of one signal.
  ///
  /// x = U z and U' G U = 1 for the Gram matrix G of the atoms taken, so that U is the inverse of G's upper
  /// Cholesky factor and z the coordinates of y in the orthonormal basis that the atoms make one after the
  /// other.
  struct Pursuit {
    const float* y = nullptr;
    float* start = nullptr;  // correlations with the base residual, one per atom; NaN = taken or refused
    double energy = 0;       // y . y
    double left = 0;         // energy of the residual, by subtraction
    double base_norm = 0;    // norm of the residual that `start` belongs to
    int exponent = 0;        // y is the signal times 2^-exponent, of norm 1 to 2
    size_t count = 0;        // atoms taken
    bool residual_known = false;
    std::vector<uint32_t> ids, excluded;
    std::vector<const float*> rows;         // the atoms
    std::vector<double> z, x, x_base;       // x_base: x that `start` belongs to
    AlignedVector<double> inverse;          // U, column by column, (capacity, stride)
    AlignedVector<double> residual_double;  // y - D x
    AlignedVector<float> residual;          // the same, rounded; valid if residual_known
  };

  void begin(Pursuit& p, size_t index);
  bool advance(Pursuit& p);
  bool reached(Pursuit& p) const;
  int64_t select(Pursuit& p);
  bool add(Pursuit& p, uint32_t atom);
  void compute_residual(Pursuit& p) const;
  void rebase(Pursuit& p) const;
  void restart(Pursuit& p) const;
  double screen(const Pursuit& p);
  void collect(const Pursuit& p, double threshold);
  void finish(Pursuit& p, size_t index, SparseCodes& codes);

  const Omp& omp_;
  const Kernels& kernels_;
  const size_t capacity_;  // atoms per signal
  const size_t stride_;    // of U
  const double target_;    // on energies, relative
  const double doubt_;
  std::vector<Pursuit> pursuits_;
  std::vector<int> exponents_;
  AlignedVector<float> signals_;       // (signals_of, row stride)
  AlignedVector<float> residuals_;     // the same, of the direct form
  AlignedVector<float> correlations_;  // (signals_of, gram stride)
  AlignedVector<double> g_, v_, w_;
  std::vector<float> peaks_, tile_, products_;
  float scale_ = 0;  // of the screening's integer sums
  std::vector<const int16_t*> gram_rows_;
  std::vector<uint32_t> weights_;
  std::vector<uint32_t> candidates_;
  std::vector<const float*> candidate_rows_;
};

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
      correlations_(signals_of(omp) * omp.gram_stride_),
      g_(stride_),
      v_(stride_),
      w_(stride_),
      peaks_(omp.gram_stride_ / kTile),
      tile_(kTile),
      products_(std::max(capacity_, size_t{1})) {
  if (!omp.has_gram()) residuals_.resize(signals_.size());
  for (Pursuit& p : pursuits_) {
    p.rows.resize(capacity_);
    p.z.resize(capacity_);
    p.x.resize(stride_);
    p.x_base.resize(stride_);
    p.inverse.resize(capacity_ * stride_);
    p.residual_double.resize(omp.row_stride_);
    p.residual.resize(omp.row_stride_);
  }
}

void OmpBlock::run(MatrixView<const float> signals, size_t first, SparseCodes& codes) {
  const size_t count = signals.rows(), width = omp_.width_, row_stride = omp_.row_stride_;
  for (size_t i = 0; i < count; ++i)
    exponents_[i] = scale_signal(signals.row(i), first + i, signals_.data() + i * row_stride);
  const auto correlate = [&](const AlignedVector<float>& rows, size_t number) {
    gemm(1, {rows.data(), number, width, row_stride}, Transpose::no, omp_.padded_atoms(), Transpose::yes, 0,
         {correlations_.data(), number, omp_.atoms_, omp_.gram_stride_});
  };
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
      p.start = correlations_.data() + slot * omp_.gram_stride_;
    }
    correlate(residuals_, active.size());
    for (const size_t i : active) rebase(pursuits_[i]);
  }
  for (size_t i = 0; i < count; ++i) finish(pursuits_[i], first + i, codes);
}

/// Starts the pursuit of the block's signal `index`.
void OmpBlock::begin(Pursuit& p, size_t index) {
  const float* y = signals_.data() + index * omp_.row_stride_;
  p.y = y;
  p.start = correlations_.data() + index * omp_.gram_stride_;
  p.exponent = exponents_[index];
  for (size_t i = 0; i < omp_.row_stride_; ++i) p.residual_double[i] = y[i];
  p.energy = p.left = energy_of<double>(p.residual_double);
  p.base_norm = std::sqrt(p.energy);
  p.count = 0;
  p.residual_known = true;
  std::copy_n(y, omp_.row_stride_, p.residual.data());
  p.ids.clear();
  p.excluded.clear();
  std::fill(p.x.begin(), p.x.end(), 0.0);
  std::fill(p.x_base.begin(), p.x_base.end(), 0.0);
}

/// Whether the residual is small enough to stop.
bool OmpBlock::reached(Pursuit& p) const {
  if (p.left <= doubt_ * p.energy) {
    compute_residual(p);
    p.left = energy_of<double>(p.residual_double);
  }
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
  kernels_.residual(p.y, p.rows.data(), p.x.data(), p.count, omp_.row_stride_, p.residual_double.data());
  for (size_t i = 0; i < omp_.row_stride_; ++i) p.residual[i] = static_cast<float>(p.residual_double[i]);
  p.residual_known = true;
}

/// Makes the present residual the one that `start` belongs to; `start` holds its correlations already.
void OmpBlock::rebase(Pursuit& p) const {
  p.base_norm = std::sqrt(energy_of<double>(p.residual_double));
  p.x_base = p.x;
  for (const uint32_t atom : p.excluded) p.start[atom] = std::numeric_limits<float>::quiet_NaN();
}

/// The same, computing the correlations.
void OmpBlock::restart(Pursuit& p) const {
  compute_residual(p);
  const float* rows[64];
  for (size_t first = 0; first < omp_.atoms_; first += std::size(rows)) {
    const size_t count = std::min(std::size(rows), omp_.atoms_ - first);
    for (size_t i = 0; i < count; ++i) rows[i] = omp_.rows_.data() + (first + i) * omp_.row_stride_;
    kernels_.dots(rows, count, p.residual.data(), omp_.row_stride_, p.start + first);
  }
  rebase(p);
}

/// Fills peaks_ with the screened correlations' largest magnitude per tile. Returns the bound of their error
/// against the inner products with the residual as select() computes them.
double OmpBlock::screen(const Pursuit& p) {
  double largest = 0;
  for (size_t i = 0; i < p.count; ++i) largest = std::max(largest, std::abs(p.x[i] - p.x_base[i]));
  double error = 2 * rounding_of_dot(omp_.width_) * p.base_norm;
  gram_rows_.clear();
  weights_.clear();
  float scale = 0;
  if (largest > 0) {
    const double step = std::max(largest / kWeightUnit, p.base_norm / kSumUnit);
    const double entry_error = 0.5 / kGramUnit + rounding_of_dot(omp_.width_);
    scale = static_cast<float>(step / kGramUnit);
    for (size_t i = 0; i < p.count; ++i) {
      const double weight = std::nearbyint((p.x[i] - p.x_base[i]) / step);
      const uint32_t word = static_cast<uint16_t>(static_cast<int16_t>(weight));
      gram_rows_.push_back(omp_.gram_.data() + p.ids[i] * omp_.gram_stride_);
      if (i % 2 == 0)
        weights_.push_back(word);
      else
        weights_.back() |= word << 16;
      error += step * (std::abs(weight) * entry_error + omp_.gram_peaks_[p.ids[i]] / kGramUnit * 0.5);
    }
    if (p.count % 2 == 1) gram_rows_.push_back(gram_rows_.back());  // its weight is zero
  }
  kernels_.screen(p.start, gram_rows_.data(), weights_.data(), weights_.size(), scale, omp_.gram_stride_,
                  peaks_.data());
  scale_ = scale;
  return error;
}

/// Fills candidates_ with the atoms whose screened correlation is at least `threshold`, ascending.
void OmpBlock::collect(const Pursuit& p, double threshold) {
  candidates_.clear();
  for (size_t t = 0; t < peaks_.size(); ++t) {
    if (peaks_[t] < threshold) continue;
    kernels_.screen_tile(p.start, gram_rows_.data(), weights_.data(), weights_.size(), scale_, t * kTile,
                         tile_.data());
    const size_t count = std::min<size_t>(kTile, omp_.atoms_ - t * kTile);
    for (size_t i = 0; i < count; ++i)
      if (tile_[i] >= threshold)
        candidates_.push_back(static_cast<uint32_t>(t * kTile + i));  // false for NaN
  }
}

/// The atom with the largest correlation, or -1 if there is none above the noise.
int64_t OmpBlock::select(Pursuit& p) {
  const auto look = [&] {
    const double error = screen(p);
    const double best = *std::max_element(peaks_.begin(), peaks_.end());
    // An atom below best - 2 error cannot win. At least some positive value: excluded atoms and padding show
    // 0.
    collect(p, std::max(best - 2 * error, double{std::numeric_limits<float>::min()}));
    return best - error;
  };
  const double noise = kNoise * std::sqrt(p.energy);
  double sure = look();
  const bool moved = p.count > 0 && p.x != p.x_base;
  if (candidates_.size() > kManyCandidates && moved) {
    restart(p);
    sure = look();
  }
  if (candidates_.empty()) return -1;
  if (candidates_.size() == 1 && sure > noise) return candidates_[0];
  compute_residual(p);
  candidate_rows_.clear();
  for (const uint32_t atom : candidates_)
    candidate_rows_.push_back(omp_.rows_.data() + atom * omp_.row_stride_);
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
  const float* row = omp_.rows_.data() + atom * omp_.row_stride_;
  const size_t k = p.count;
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
  for (size_t i = 0; i <= k; ++i) p.x[i] += p.z[k] * column[i];
  p.left -= p.z[k] * p.z[k];
  p.rows[k] = row;
  p.ids.push_back(atom);
  p.count = k + 1;
  p.residual_known = false;
  return true;
}

/// Refines the coefficients once in double, so that they are the least-squares ones to float precision, and
/// stores the code.
void OmpBlock::finish(Pursuit& p, size_t index, SparseCodes& codes) {
  const size_t k = p.count;
  p.residual_known = false;
  compute_residual(p);
  double left = energy_of<double>(p.residual_double);
  std::fill(g_.begin(), g_.end(), 0.0);
  kernels_.dots_double(p.rows.data(), k, p.residual_double.data(), omp_.row_stride_, g_.data());
  kernels_.apply_both(p.inverse.data(), stride_, k, g_.data(), v_.data(), w_.data());
  for (size_t i = 0; i < k; ++i) {
    left -= v_[i] * v_[i];
    codes.ids(index, i) = p.ids[i];
    codes.coefficients(index, i) = static_cast<float>(std::ldexp(p.x[i] + w_[i], p.exponent));
  }
  codes.counts[index] = static_cast<uint32_t>(k);
  codes.residuals[index] = std::ldexp(std::sqrt(std::max(left, 0.0)), p.exponent);
}

uint64_t Omp::scratch_bytes(int64_t sparsity) const {
  const uint64_t s = round_up(static_cast<size_t>(sparsity), kDoubleLanes);
  const uint64_t signals = OmpBlock::signals_of(*this), pursuits = has_gram() ? 1 : kDirectBlock;
  return signals * (2 * row_stride_ + gram_stride_) * sizeof(float) + pursuits * s * s * sizeof(double);
}

SparseCodes Omp::encode(MatrixView<const float> signals, const OmpOptions& options) const {
  options.check();
  if (signals.cols() != width_)
    throw failed("signals of {} values do not fit a dictionary of width {}", signals.cols(), width_);
  const auto s = static_cast<size_t>(options.sparsity);
  if (s > width_) throw usage_error("sparsity is {}; signals have only {} values", s, width_);
  if (s > atoms_) throw usage_error("sparsity is {}; the dictionary has only {} atoms", s, atoms_);
  SparseCodes codes{{signals.rows(), s}, {signals.rows(), s}, {}, {}};
  codes.counts.resize(signals.rows());
  codes.residuals.resize(signals.rows());
  std::vector<std::unique_ptr<OmpBlock>> blocks(static_cast<size_t>(num_threads()));
  parallel_for(signals.rows(), OmpBlock::signals_of(*this), [&](size_t begin, size_t end, int worker) {
    auto& block = blocks[static_cast<size_t>(worker)];
    if (!block) block = std::make_unique<OmpBlock>(*this, options);
    block->run(signals.rows(begin, end - begin), begin, codes);
  });
  return codes;
}

}  // namespace kvcodec
