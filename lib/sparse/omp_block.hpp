// The pursuit itself, for one block of signals on one thread. Inside lib/sparse only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/omp_kernels.hpp"
#include "lib/sparse/omp_screen.hpp"

namespace kvcodec {

/// Rounding of an inner product of m floats, as a fraction of the product of the norms. Partial sums are a random
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
    AlignedVector<double> inverse;  // U, column by column, (capacity, stride)
    AlignedVector<float> residual;  // y - D x; valid if residual_known
  };

  void correlate(const AlignedVector<float>& rows, size_t count);
  void begin(Pursuit& p, size_t index);
  bool advance(Pursuit& p);
  bool reached(Pursuit& p);
  int64_t select(Pursuit& p);
  int64_t select_by_error(Pursuit& p);
  double look(Pursuit& p);
  double look_at_start(const Pursuit& p, double error);
  void exclude(Pursuit& p, uint32_t atom);
  bool add(Pursuit& p, uint32_t atom);
  double project(Pursuit& p, uint32_t atom);
  double comparison_error(size_t rows) const;
  void compare(Pursuit& p);
  void compute_residual(Pursuit& p) const;
  double exact_energy(const Pursuit& p);
  void exclude_again(Pursuit& p) const;
  void restart(Pursuit& p) const;
  void finish(Pursuit& p, size_t index, SparseCodes& codes);

  const Omp& omp_;
  const omp_kernels::Kernels& kernels_;
  const size_t capacity_;  // atoms per signal
  const size_t stride_;    // of U
  const double target_;    // on energies, relative
  const double doubt_;
  std::unique_ptr<CorrelationScreen> by_correlation_;  // with a Gram matrix one of the two
  std::unique_ptr<ErrorScreen> by_error_;
  std::vector<Pursuit> pursuits_;
  std::vector<int> exponents_;
  AlignedVector<float> signals_;       // (signals_of, row stride)
  AlignedVector<float> residuals_;     // the same, of the form without a Gram matrix
  std::vector<double> start_errors_;   // bounds of the correlations' errors
  AlignedVector<float> correlations_;  // (signals_of, stride of the Gram matrix)
  AlignedVector<double> g_, v_, w_, residual_double_;
  double along_y_ = 0;  // of the atom that project looked at
  std::vector<float> peaks_, products_;
  std::vector<uint32_t> candidates_;
  std::vector<const float*> candidate_rows_;
};

}  // namespace kvcodec
