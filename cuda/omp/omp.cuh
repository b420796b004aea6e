// Launchers of the kernels of omp.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

inline constexpr unsigned kOmpRows = 128;       ///< residuals of one tile of products
inline constexpr unsigned kOmpAtoms = 256;      ///< atoms of one tile of products
inline constexpr unsigned kOmpStep = 32;        ///< rough rows are padded to a multiple of so many elements
inline constexpr unsigned kOmpFloats = 16;      ///< and rows of floats to one of so many, with zeros
inline constexpr unsigned kOmpMaxTaken = 1024;  ///< atoms per signal: their state must fit shared memory

/// A dictionary.
struct OmpAtoms {
  const float* rows = nullptr;       ///< (count, stride), zeros behind the width
  const uint16_t* rough = nullptr;   ///< (count, padded): f16(2^kAtomTop * row), zeros behind the width
  const double* energies = nullptr;  ///< d . d of each atom
  const float* largest = nullptr;  ///< [0] the largest norm, or more; [1] the largest |row - rough|, or more
  const float* gram = nullptr;     ///< (count, count) inner products in float, as lib's; or nullptr
  uint32_t count = 0, width = 0, stride = 0, padded = 0;
};
/// Fills rough, energies and largest from rows.
[[nodiscard]] Status run_omp_atoms(const OmpAtoms& atoms, uint16_t* rough, double* energies, float* largest,
                                   StreamHandle stream);
/// Fills gram: (count, count).
[[nodiscard]] Status run_omp_gram(const OmpAtoms& atoms, float* gram, StreamHandle stream);

/// The pursuits of a batch of signals, by signal.
struct OmpState {
  float* signals = nullptr;      ///< (., stride): times 2^-exponent, of norm 1 to 2
  float* residuals = nullptr;    ///< (., stride)
  double* exact = nullptr;       ///< (., stride): room for residuals in double
  uint16_t* rough = nullptr;     ///< (., padded): the residuals over factor, in f16
  float* factors = nullptr;      ///< powers of two
  float* norms = nullptr;        ///< of the residuals, or more
  float* errors = nullptr;       ///< of rough, or more
  uint32_t* excluded = nullptr;  ///< (., mask_words) a bit for each atom, taken or refused
  double* inverse = nullptr;     ///< (., packed_columns(sparsity)): U, column by column
  double* x = nullptr;           ///< (., sparsity)
  double* z = nullptr;           ///< (., sparsity)
  double* energies = nullptr;    ///< y . y
  double* left = nullptr;        ///< energy of the residual, by subtraction
  int32_t* exponents = nullptr;
  uint32_t* ids = nullptr;     ///< (., sparsity)
  uint32_t* counts = nullptr;  ///< atoms taken
  uint32_t* done = nullptr;
  uint32_t mask_words = 0, sparsity = 0;
  double target = 0, doubt = 0;  ///< on energies, relative
};

/// Doubles of so many columns of U: column j has j + 1 values and zeros up to a multiple of 8.
inline constexpr size_t packed_columns(size_t columns) {
  const size_t groups = columns / 8, rest = columns % 8;
  return 32 * groups * (groups + 1) + 8 * rest * (groups + 1);
}

/// Starts the pursuits of `count` signals: (count, width). *bad becomes the lowest index of a signal that
/// is not finite; it must be the largest value before. Signals of zeros are done at once.
[[nodiscard]] Status run_omp_begin(const OmpAtoms& atoms, const OmpState& state, const float* signals,
                                   uint32_t count, uint32_t* bad, StreamHandle stream);

/// The largest and the second largest rough |product| of a residual with a tile of atoms, in units of the
/// row's: the bits of a float with the last eight replaced by the atom's place in the tile.
struct OmpPeak {
  uint32_t best, second;
};
/// Signals that take part in a round.
struct OmpRound {
  const uint32_t* active = nullptr;  ///< (count)
  uint32_t count = 0;
  OmpPeak* peaks = nullptr;      ///< (count, tiles of kOmpAtoms atoms), for the work
  uint32_t* finished = nullptr;  ///< grows by those that become done
};
/// Takes one more atom for each of those signals that is not done.
[[nodiscard]] Status run_omp_round(const OmpAtoms& atoms, const OmpState& state, const OmpRound& round,
                                   const Limits& device, StreamHandle stream);

/// coefficients: (count, sparsity), residuals: Euclidean norms; of signals 0 .. count.
[[nodiscard]] Status run_omp_finish(const OmpAtoms& atoms, const OmpState& state, uint32_t count,
                                    float* coefficients, double* residuals, StreamHandle stream);

}  // namespace kvcodec::cuda
