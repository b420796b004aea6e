// The pursuit itself, for one block of signals on one thread. Inside lib/sparse only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec {

/// Entries of the Gram matrix and of atoms in 16 bits are multiples of 1 / kWordUnit: below 2^15 with room
/// for norms that are a little above 1.
inline constexpr double kWordUnit = 32000;

/// Rounding of an inner product of m floats, as a part of the product of the norms. Partial sums are a random
/// walk of roundings of 2^-24 each; four standard deviations, and some for the final sum.
double rounding_of_dot(size_t m);

/// Sum of squares, in a fixed order.
double energy_of(std::span<const float> values);
double energy_of(std::span<const double> values);

/// Codes one block of signals at a time; holds all scratch memory of one thread.
class OmpBlock {
 public:
  OmpBlock(const Omp& omp, const OmpOptions& options);

  /// Signals of a block.
  static size_t signals_of(const Omp& omp);
  static uint64_t scratch_bytes(const Omp& omp, int64_t sparsity);

  /// Codes signals: (at most signals_of, width), and writes rows first, first + 1 … of codes.
  void run(MatrixView<const float> signals, size_t first, SparseCodes& codes);

 private:
  /// The pursuit of one signal.
  ///
  /// x = U z and U' G U = 1 for the Gram matrix G of the atoms taken, so that U is the inverse of G's upper
  /// Cholesky factor and z the coordinates of y in the orthonormal basis that the atoms make one after the
  /// other.
  struct Pursuit {
    const float* y = nullptr;
    int exponent = 0;        // y is the signal times 2^-exponent, of norm 1 to 2
    double energy = 0;       // y . y
    double left = 0;         // energy of the residual, by subtraction
    size_t count = 0;        // atoms taken
    size_t full_panels = 0;  // quads of their byte rows that are stored in panels

    float* start = nullptr;  // correlations with the residual at x_base, one per atom; NaN = taken or refused
    double start_error = 0;  // bound of their error
    double base_norm = 0;    // norm of that residual
    bool moved = false;      // x is no more x_base

    bool residual_known = false;
    std::vector<uint32_t> ids, excluded;
    std::vector<const float*> rows;  // the atoms
    std::vector<double> z, x, x_base;
    std::vector<float> x_float;
    AlignedVector<double> inverse;  // U, column by column, (capacity, stride)
    AlignedVector<float> residual;  // y - D x; valid if residual_known
    AlignedVector<uint8_t> panels;
  };

  /// How correlations are screened at the moment.
  enum class Screen { words, bytes, none };  // none: `start` is up to date

  void scale_signals(MatrixView<const float> signals, size_t first);
  void correlate(const AlignedVector<float>& rows, size_t count);
  void begin(Pursuit& p, size_t index);
  bool advance(Pursuit& p);
  bool reached(Pursuit& p);
  int64_t select(Pursuit& p);
  double look(Pursuit& p);
  bool add(Pursuit& p, uint32_t atom);
  void compute_residual(Pursuit& p) const;
  double exact_energy(const Pursuit& p);
  void exclude_again(Pursuit& p) const;
  void set_base(Pursuit& p) const;
  void restart(Pursuit& p) const;
  double screen_words(Pursuit& p, bool rebase);
  double screen_bytes(Pursuit& p);
  void collect(const Pursuit& p, double threshold);
  void finish(Pursuit& p, size_t index, SparseCodes& codes);

  const Omp& omp_;
  const omp_kernels::Kernels& kernels_;
  const size_t capacity_;  // atoms per signal
  const size_t stride_;    // of U
  const double target_;    // on energies, relative
  const double doubt_;
  const bool use_bytes_;
  std::vector<Pursuit> pursuits_;
  std::vector<int> exponents_;
  AlignedVector<float> signals_;       // (signals_of, row stride)
  AlignedVector<float> residuals_;     // the same, of the form without a Gram matrix
  AlignedVector<uint32_t> words_;      // signals in 16 bits, (signals_of, pairs)
  std::vector<float> word_scales_;     // what their products are multiplied by
  std::vector<double> start_errors_;   // bounds of the correlations' errors
  AlignedVector<float> correlations_;  // (signals_of, stride of the Gram matrix)
  AlignedVector<double> g_, v_, w_, residual_double_;
  std::vector<float> peaks_, tile_, products_;
  Screen screen_ = Screen::none;  // what peaks_ are of
  omp_kernels::WordRows word_rows_{};
  omp_kernels::ByteRows byte_rows_{};
  std::vector<const int16_t*> gram_rows_;
  std::vector<uint32_t> weights_, high_, low_;
  std::vector<uint32_t> candidates_;
  std::vector<const float*> candidate_rows_;
};

}  // namespace kvcodec
