// One side's dictionary: the atoms, and what is done to signals before they are coded with them.
#pragma once

#include <cstdint>

#include "lib/core/view.hpp"
#include "lib/sparse/byte_atoms.hpp"
#include "lib/sparse/signals.hpp"

namespace kvcodec {

/// How far from 1 the norms of atoms may be: the float rounding of their entries is far below, a dictionary
/// that was never normalised far above.
inline constexpr double kNormTolerance = 1e-3;

/// Throws Error(bad_input) if there is no atom, or naming the first whose norm is not 1 within kNormTolerance
/// (or not finite).
void check_atoms(MatrixView<const float> atoms);

struct Dictionary {
  Matrix<float> atoms;  ///< (n, m), each row of norm 1
  ByteAtoms bytes;      ///< what the atoms are made of, where they come from 8 bits; else empty
  Normalization normalization;

  /// Throws Error(bad_input) unless the atoms have norm 1  and width layout.signal_width(), and the
  /// normalization fits a model of num_layers layers.
  void check(const SignalLayout& layout, size_t num_layers) const;

  /// Makes the atoms what they are after being kept as that type.
  void store_as(AtomType type);
};

/// Divides each row by its norm, taken in double. Rows whose norm is 1 within 1e-6 (the rounding of their
/// entries) are left as they are, so that doing it twice changes nothing. Rows of zeros, or not finite, are
/// left alone too: returns how many.
size_t normalize_atoms(MatrixView<float> atoms);

/// Fills atoms with uniform random rows of norm 1 (He et al., 2015; the paper's start).
void kaiming_atoms(uint64_t seed, MatrixView<float> atoms);

}  // namespace kvcodec
