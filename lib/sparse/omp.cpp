#include "lib/sparse/omp.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/omp_decisions.hpp"
#include "lib/sparse/omp_kernels.hpp"
#include "lib/sparse/omp_screen.hpp"

namespace kvcodec {

using omp_kernels::Kernels;
using omp_kernels::kTile;

namespace {

static_assert(kWordUnit * (1 + kNormTolerance) * (1 + kNormTolerance) < 32767);

/// Side of the tiles in which the Gram matrix is computed, and how many are computed before they are placed: 32 MiB.
constexpr size_t kGramTile = 256, kTilesAtOnce = 256;

/// Largest byte, as a distance from the offset, that rows of bytes are scaled to.
constexpr double kLargestByte = 125;

/// Signals that share one pass over the dictionary. Enough for the dictionary, read from the third-level
/// cache, not to matter; 128 rows of 8192 correlations are 4 MiB per thread.
constexpr size_t kBlock = 128;

/// The same without a Gram matrix, where the state of every signal of the block is held at once.
constexpr size_t kDirectBlock = 32;

/// From this number of candidates on it pays to compute all correlations anew, which gets rid of the errors
/// of those that are there: one candidate takes as long as one atom.
size_t many_candidates(size_t atoms) { return std::max<size_t>(48, atoms / 16); }

/// Rounding of an inner product of m floats, as a fraction of the product of the norms. Partial sums are a
/// random walk of roundings of 2^-24 each; four standard deviations, and some for the final sum.
double rounding_of_dot(size_t m) { return (8 + 4 * std::sqrt(static_cast<double>(m))) * 0x1p-24; }

/// The products of two vectors, element i added to lane i mod 8: a fixed order that compilers make wide.
struct Lanes {
  double sums[8] = {};

  template <class A, class B>
  Lanes(const A* a, const B* b, size_t n) {
    size_t i = 0;
    for (; i + std::size(sums) <= n; i += std::size(sums))
      for (size_t lane = 0; lane < std::size(sums); ++lane) sums[lane] += double{a[i + lane]} * b[i + lane];
    for (; i < n; ++i) sums[i % std::size(sums)] += double{a[i]} * b[i];
  }

  double in_order() const { return std::accumulate(std::begin(sums), std::end(sums), 0.0); }
  /// The upper half added to the lower half until one is left.
  double as_tree() const {
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
  }
};

double energy_of(const auto* values, size_t n) { return Lanes(values, values, n).in_order(); }

/// Signal times a power of two that brings its norm to [1, 2), so that no product over- or underflows; out
/// keeps what stands behind the signal's width. Returns the exponent to undo it.
int scale_signal(std::span<const float> signal, size_t index, float* out) {
  const double energy = energy_of(signal.data(), signal.size());
  if (!std::isfinite(energy)) throw bad_input("signal {} has values that are not finite", index);
  const int exponent = energy > 0 ? std::ilogb(std::sqrt(energy)) : 0;
  const double factor = std::ldexp(1.0, -exponent);  // a double: floats have no 2^149
  for (size_t i = 0; i < signal.size(); ++i) out[i] = static_cast<float>(signal[i] * factor);
  return exponent;
}

}  // namespace

/// Codes one block of signals at a time; holds all scratch memory of one thread.
class OmpBlock {
 public:
  OmpBlock(const Omp& omp, const OmpOptions& options)
      : omp_(omp),
        capacity_(as_size(options.sparsity)),
        target_(options.error_target * options.error_target),
        doubt_(options.error_target > 0 ? kEnergyDoubtForTarget : kEnergyDoubt),
        screen_(make_screen({.words = omp.has_gram() ? omp.gram_.data() : nullptr,
                             .bytes = omp.gram_bytes_.empty() ? nullptr : omp.gram_bytes_.data(),
                             .atoms = omp.atoms_,
                             .stride = omp.stride_,
                             .byte_units = omp.byte_units_.data(),
                             .peaks = omp.gram_peaks_.data(),
                             .entry_error = 0.5 / kWordUnit + rounding_of_dot(omp.width_)},
                            capacity_)),
        pursuits_(omp.has_gram() ? 1 : kDirectBlock) {
    for (Pursuit& p : pursuits_) {
      p.rows.resize(capacity_ + 1);
      p.z.resize(capacity_);
      p.x.resize(capacity_);
      p.x_float.resize(capacity_);
      p.inverse.resize(capacity_ * capacity_);
      p.residual.resize(omp.row_stride_);
    }
  }

  static size_t signals_of(const Omp& omp) { return omp.has_gram() ? kBlock : kDirectBlock; }

  /// Codes signals: (at most signals_of, width), and writes rows first, first + 1 … of codes.
  void run(MatrixView<const float> signals, size_t first, SparseCodes& codes) {
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
    // Without a Gram matrix all signals of the block take their steps together, and one product serves them all.
    std::vector<size_t> active;
    for (size_t i = 0; i < count; ++i) {
      begin(pursuits_[i], i);
      active.push_back(i);
    }
    while (!active.empty()) {
      std::erase_if(active, [&](size_t i) {
        screen_->begin(pursuits_[i].start, pursuits_[i].start_error);
        return !advance(pursuits_[i]);
      });
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

 private:
  /// The pursuit of one signal.
  ///
  /// x = U z and U' G U = 1 for the Gram matrix G of the atoms taken, so that U is the inverse of G's upper Cholesky factor and z the
  /// coordinates of y in the orthonormal basis that the atoms make one after the other.
  struct Pursuit {
    const float* y = nullptr;
    int exponent = 0;   // y is the signal times 2^-exponent, of norm 1 to 2
    double energy = 0;  // y . y
    double left = 0;    // energy of the residual, by subtraction
    size_t count = 0;   // atoms taken

    float* start = nullptr;  // correlations, one per atom; without a Gram matrix with the present residual
    double start_error = 0;  // bound of their error

    bool residual_known = false;
    std::vector<uint32_t> ids, excluded;
    std::vector<const float*> rows;  // the atoms
    std::vector<double> z, x;
    std::vector<float> x_float;
    std::vector<double> inverse;    // U, column by column, (capacity, capacity)
    AlignedVector<float> residual;  // y - D x; valid if residual_known
  };

  /// Fills correlations_ with the inner products of all atoms and some rows, and start_errors_ with the bounds of their errors.
  void correlate(const AlignedVector<float>& rows, size_t count) {
    gemm(1, MatrixView<const float>{rows.data(), count, omp_.width_, omp_.row_stride_},
         transposed(omp_.padded_atoms()), 0, {correlations_.data(), count, omp_.atoms_, omp_.stride_});
    for (size_t i = 0; i < count; ++i)
      start_errors_[i] = rounding_of_dot(omp_.width_) *
                         std::sqrt(energy_of(rows.data() + i * omp_.row_stride_, omp_.row_stride_));
  }

  /// Starts the pursuit of the block's signal `index`.
  void begin(Pursuit& p, size_t index) {
    p.y = signals_.data() + index * omp_.row_stride_;
    p.exponent = exponents_[index];
    p.energy = p.left = energy_of(p.y, omp_.row_stride_);
    p.count = 0;
    p.start = correlations_.data() + index * omp_.stride_;
    p.start_error = start_errors_[index];
    p.residual_known = true;
    std::copy_n(p.y, omp_.row_stride_, p.residual.data());
    p.ids.clear();
    p.excluded.clear();
    screen_->begin(p.start, p.start_error);
  }

  /// Takes one more atom. False if the signal is finished.
  bool advance(Pursuit& p) {
    if (p.count == capacity_) return false;
    if (p.left <= doubt_ * p.energy) p.left = exact_energy(p);
    if (p.left <= std::max(target_, kNoise * kNoise) * p.energy) return false;
    for (;;) {
      const int64_t best = select(p);
      if (best < 0) return false;
      const auto atom = static_cast<uint32_t>(best);
      p.excluded.push_back(atom), screen_->exclude(atom);  // taken or refused
      if (add(p, atom)) return true;
    }
  }

  void exclude_again(Pursuit& p) const {
    for (const uint32_t atom : p.excluded) p.start[atom] = std::numeric_limits<float>::quiet_NaN();
  }

  void compute_residual(Pursuit& p) const {
    if (p.residual_known) return;
    std::ranges::transform(p.x, p.x_float.begin(), [](double x) { return static_cast<float>(x); });
    kernels_.residual(p.y, p.rows.data(), p.x_float.data(), p.count, omp_.row_stride_, p.residual.data());
    p.residual_known = true;
  }

  /// Energy of the residual, which stays in residual_double_.
  double exact_energy(const Pursuit& p) {
    std::copy_n(p.y, residual_double_.size(), residual_double_.begin());
    for (size_t i = 0; i < p.count; ++i)
      for (size_t c = 0; c < residual_double_.size(); ++c) residual_double_[c] -= p.x[i] * p.rows[i][c];
    return energy_of(residual_double_.data(), residual_double_.size());
  }

  /// v_ = U' g_ and w_ = U v_.
  void apply_both(const Pursuit& p) {
    std::ranges::fill(w_, 0.0);
    for (size_t j = 0; j < p.count; ++j) {
      const double* column = p.inverse.data() + j * capacity_;
      v_[j] = Lanes(column, g_.data(), j + 1).as_tree();
      for (size_t i = 0; i <= j; ++i) w_[i] += column[i] * v_[j];
    }
  }

  /// Computes the correlations of the present residual in float.
  void restart(Pursuit& p) const {
    compute_residual(p);
    const float* rows[64];
    for (size_t first = 0; first < omp_.atoms_; first += std::size(rows)) {
      const size_t count = std::min(std::size(rows), omp_.atoms_ - first);
      for (size_t i = 0; i < count; ++i) rows[i] = omp_.row(first + i);
      kernels_.dots(rows, count, p.residual.data(), omp_.row_stride_, p.start + first);
    }
    exclude_again(p);
  }

  /// Finds the candidates. Returns a lower bound of the largest correlation.
  double look(Pursuit& p) {
    // Bound of the error of what decides: inner products in float with a residual in float that is the sum of so many rows.
    const double margin = 2 * rounding_of_dot(omp_.width_ + p.count) * std::sqrt(p.energy);
    const std::span<const double> x = std::span(p.x).first(p.count);
    const double sure = screen_->look(x, margin, candidates_);
    if (candidates_.size() <= many_candidates(omp_.atoms_) || screen_->exact()) return sure;
    restart(p);
    screen_->rebase(x);
    return screen_->look(x, margin, candidates_);
  }

  /// The atom with the largest correlation, or -1 if there is none above the noise.
  int64_t select(Pursuit& p) {
    const double noise = kNoise * std::sqrt(p.energy), sure = look(p);
    if (candidates_.empty()) return -1;
    if (candidates_.size() == 1 && sure > noise) return candidates_[0];
    // The inner products of the candidates with the residual: the very numbers that decide.
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
  bool add(Pursuit& p, uint32_t atom) {
    const size_t k = p.count;
    screen_->expect(atom);
    p.rows[k] = p.y;  // for the length of the next call: one more product
    kernels_.dots(p.rows.data(), k + 1, omp_.row(atom), omp_.row_stride_, products_.data());
    std::copy_n(products_.begin(), k, g_.begin());
    apply_both(p);  // v_: the atom's coordinates in the basis of those taken
    double inside = 0, explained = 0;
    for (size_t i = 0; i < k; ++i) inside += v_[i] * v_[i], explained += v_[i] * p.z[i];
    const double outside = omp_.energies_[atom] - inside;  // energy
    if (!(outside > kIndependent * omp_.energies_[atom])) return false;
    const double norm = std::sqrt(outside);
    double* column = p.inverse.data() + k * capacity_;
    for (size_t i = 0; i < k; ++i) column[i] = -w_[i] / norm;
    column[k] = 1 / norm;
    p.z[k] = (double{products_[k]} - explained) / norm;
    p.x[k] = 0;
    for (size_t i = 0; i <= k; ++i) p.x[i] += p.z[k] * column[i];
    p.left -= p.z[k] * p.z[k];
    p.rows[k] = omp_.row(atom);
    p.ids.push_back(atom);
    p.count = k + 1;
    p.residual_known = false;
    if (p.count < capacity_)  // else nobody looks any more
      screen_->add(atom, std::span(p.x).first(p.count));
    return true;
  }

  /// Refines the coefficients once in double, so that they are the least-squares ones to float precision, and stores the code.
  void finish(Pursuit& p, size_t index, SparseCodes& codes) {
    const size_t k = p.count;
    double left = exact_energy(p);
    for (size_t i = 0; i < k; ++i)
      g_[i] = Lanes(p.rows[i], residual_double_.data(), omp_.row_stride_).as_tree();
    apply_both(p);
    const double factor = std::ldexp(1.0, p.exponent);
    for (size_t i = 0; i < k; ++i) {
      left -= v_[i] * v_[i];
      codes.ids(index, i) = p.ids[i];
      codes.coefficients(index, i) = static_cast<float>((p.x[i] + w_[i]) * factor);
    }
    codes.counts[index] = static_cast<uint32_t>(k);
    codes.residuals[index] = std::sqrt(std::max(left, 0.0)) * factor;
  }

  const Omp& omp_;
  const Kernels& kernels_ = omp_kernels::best();
  const size_t capacity_;  // atoms per signal
  const double target_;    // on energies, relative
  const double doubt_;
  const std::unique_ptr<Screen> screen_;
  std::vector<Pursuit> pursuits_;
  const size_t block_ = signals_of(omp_);
  std::vector<int> exponents_ = std::vector<int>(block_);
  AlignedVector<float> signals_ = AlignedVector<float>(block_ * omp_.row_stride_);
  AlignedVector<float> residuals_ = omp_.has_gram() ? AlignedVector<float>() : signals_;
  std::vector<double> start_errors_ = std::vector<double>(block_);  // bounds of the correlations' errors
  AlignedVector<float> correlations_ = AlignedVector<float>(block_ * omp_.stride_);
  std::vector<double> g_ = std::vector<double>(capacity_), v_ = g_, w_ = g_;
  std::vector<double> residual_double_ = std::vector<double>(omp_.row_stride_);
  std::vector<float> products_ = std::vector<float>(std::max(capacity_, size_t{1}));
  std::vector<uint32_t> candidates_;
  std::vector<const float*> candidate_rows_;
};

void OmpOptions::check(size_t width, size_t atoms) const {
  if (!(error_target < 1)) throw usage_error("error-target is {}; it must be below 1", error_target);
  const auto s = as_size(sparsity);
  if (s > width) throw usage_error("sparsity is {}; signals have only {} values", s, width);
  if (s > atoms) throw usage_error("sparsity is {}; the dictionary has only {} atoms", s, atoms);
}

void Omp::assign(MatrixView<const float> atoms) {
  check_atoms(atoms);
  if (atoms.rows() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    throw bad_input("a dictionary of {} atoms is beyond 31 bits", atoms.rows());
  atoms_ = atoms.rows(), width_ = atoms.cols();
  row_stride_ = round_up(width_, omp_kernels::kFloatLanes);
  stride_ = round_up(atoms_, kTile);
  gram_.clear();
  gram_bytes_.clear();
  rows_.resize(checked_mul(atoms_, row_stride_));
  energies_.resize(atoms_);
  parallel_each(atoms_, 64, [&](size_t i) {
    float* row = rows_.data() + i * row_stride_;
    std::fill(std::ranges::copy(atoms.row(i), row).out, row + row_stride_, 0.0f);
    energies_[i] = energy_of(row, width_);
  });
}

uint64_t Omp::gram_bytes(size_t n) {
  return checked_mul(checked_mul(n, round_up(n, kTile)), sizeof(int16_t) + sizeof(uint8_t));
}

/// The inner products of two tiles of atoms in 16 bits, one row of the first behind the other.
void Omp::gram_tile(Tile tile, std::span<int16_t> words) const {
  const auto [i, j] = tile;
  const size_t rows = std::min(kGramTile, atoms_ - i), cols = std::min(kGramTile, atoms_ - j);
  Matrix<float> products(rows, cols);
  gemm(1, padded_atoms().rows(i, rows), transposed(padded_atoms().rows(j, cols)), 0, products);
  for (size_t k = 0; k < products.size(); ++k)
    words[k] = static_cast<int16_t>(rounded(products.data()[k] * static_cast<float>(kWordUnit)));
}

/// Writes them to both sides of the diagonal.
void Omp::put_gram_tile(Tile tile, std::span<const int16_t> words) {
  const auto [i, j] = tile;
  const size_t rows = std::min(kGramTile, atoms_ - i), cols = std::min(kGramTile, atoms_ - j);
  for (size_t r = 0; r < rows; ++r)
    std::ranges::copy(words.subspan(r * cols, cols), &gram_[(i + r) * stride_ + j]);
  if (i == j) return;
  for (size_t c = 0; c < cols; ++c)
    for (size_t r = 0; r < rows; ++r) gram_[(j + c) * stride_ + i + r] = words[r * cols + c];
}

void Omp::build_gram(const Team& team) {
  if (has_gram()) return;
  gram_.resize(checked_mul(atoms_, stride_));
  const Kernels& kernels = omp_kernels::best();
  std::vector<Tile> upper;
  for (size_t i = 0; i < atoms_; i += kGramTile)
    for (size_t j = i; j < atoms_; j += kGramTile) upper.emplace_back(i, j);
  constexpr size_t kWords = kGramTile * kGramTile;
  std::vector<int16_t> words(std::min(kTilesAtOnce, upper.size()) * kWords);
  const auto words_of = [&](size_t i) { return std::span(words).subspan(i * kWords, kWords); };
  for (size_t first = 0; first < upper.size(); first += kTilesAtOnce) {
    const size_t count = std::min(kTilesAtOnce, upper.size() - first);
    const TeamShare own = team.share(count);
    parallel_each(own.count(), 1,
                  [&](size_t i) { gram_tile(upper[first + own.begin + i], words_of(own.begin + i)); });
    team.gather(std::span(words).first(count * kWords), count);
    parallel_each(count, 1, [&](size_t i) { put_gram_tile(upper[first + i], words_of(i)); });
  }
  const bool with_bytes = kernels.screen_bytes != nullptr;
  if (with_bytes) gram_bytes_.resize(gram_.size());
  gram_peaks_.resize(atoms_);
  byte_units_.resize(atoms_);
  parallel_each(atoms_, 64, [&](size_t i) {
    int16_t* row = &gram_[i * stride_];
    std::fill(row + atoms_, row + stride_, int16_t{0});
    int peak = 0;  // of all but the diagonal
    for (size_t j = 0; j < i; ++j) peak = std::max(peak, std::abs(row[j]));
    for (size_t j = i + 1; j < atoms_; ++j) peak = std::max(peak, std::abs(row[j]));
    gram_peaks_[i] = peak / kWordUnit;
    if (!with_bytes) return;
    // Rounded down, so that the peak stays within a byte; the diagonal may not, and is never looked at.
    const double factor = std::floor(std::min(kLargestByte / std::max(peak, 1) * 0x1p15, 32767.0));
    byte_units_[i] = 0x1p15 / factor / kWordUnit;
    kernels.words_to_bytes(row, static_cast<int16_t>(factor), stride_, &gram_bytes_[i * stride_]);
  });
}

void Omp::products_of(std::span<const uint32_t> ids, MatrixView<float> out) const {
  const Kernels& kernels = omp_kernels::best();
  std::vector<const float*> rows(ids.size());
  std::ranges::transform(ids, rows.begin(), [&](uint32_t id) { return row(id); });
  for (size_t i = 0; i < ids.size(); ++i) {
    kernels.dots(rows.data(), i + 1, rows[i], row_stride_, out.row(i).data());
    for (size_t j = 0; j < i; ++j) out(j, i) = out(i, j);
  }
}

SparseCodes Omp::encode(MatrixView<const float> signals, const OmpOptions& options) const {
  options.check(width_, atoms_);
  if (signals.cols() != width_)
    throw failed("signals of {} values do not fit a dictionary of width {}", signals.cols(), width_);
  const auto s = as_size(options.sparsity);
  const size_t count = signals.rows();
  SparseCodes codes{{count, s}, {count, s}, std::vector<uint32_t>(count), std::vector<double>(count)};
  std::vector<std::unique_ptr<OmpBlock>> blocks(as_size(num_threads()));
  parallel_for(count, OmpBlock::signals_of(*this), [&](size_t begin, size_t end, int worker) {
    auto& block = blocks[static_cast<size_t>(worker)];
    if (!block) block = std::make_unique<OmpBlock>(*this, options);
    block->run(signals.rows(begin, end - begin), begin, codes);
  });
  return codes;
}

}  // namespace kvcodec
