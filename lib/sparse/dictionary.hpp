// One side's dictionary: the atoms, and the transformation of signals before they are coded with them.
//
// Atoms in 8 bits are levels of -127 to 127 with one scale per atom, chosen so that the atom's norm is 1 again. The rounding is near 6e-5
// of an atom's energy (its largest entry is some 3.3 standard deviations, a level 1/127 of it), which is far below the residual of sparse
// codes; and a slice of the dictionary then stays in the processor's cache.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/core/names.hpp"
#include "lib/core/view.hpp"
#include "lib/sparse/signals.hpp"

namespace kvcodec {

/// The form in which a dictionary file keeps its atoms. Coding uses the atoms as read from the file.
enum class AtomType : uint8_t { f32, i8 };
constexpr auto names_of(AtomType) { return std::to_array<std::string_view>({"f32", "i8"}); }

/// Atom i is scales[i] * levels.row(i), each product rounded to f32.
struct ByteAtoms {
  Matrix<int8_t> levels;      ///< (n, m), none of them -128
  std::vector<float> scales;  ///< n, positive

  bool empty() const { return scales.empty(); }
};

/// The nearest levels, the largest entry of each atom at +-127; scales of 1 / |levels|. Applied to floats_of(round_to_bytes(x)), it
/// gives the same levels and scales again. atoms: finite, no row of zeros.
ByteAtoms round_to_bytes(MatrixView<const float> atoms);

Matrix<float> floats_of(const ByteAtoms& atoms);

/// Maximum distance of atoms' norms from 1: that from rounding their entries to floats is far smaller, that of
/// a dictionary which was never normalised far larger.
inline constexpr double kNormTolerance = 1e-3;

/// Throws Error(bad_input) if there is no atom, or naming the first whose norm is not 1 within kNormTolerance (or not finite).
void check_atoms(MatrixView<const float> atoms);

struct Dictionary {
  Matrix<float> atoms;  ///< (n, m), each row of norm 1
  ByteAtoms bytes;      ///< the levels of the atoms, if they come from 8 bits; else empty
  Normalization normalization;

  /// Throws Error(bad_input) unless the atoms have norm 1 and width layout.signal_width(), and the
  /// normalization fits a model of num_layers layers.
  void check(const SignalLayout& layout, size_t num_layers) const {
    if (atoms.cols() != layout.signal_width())
      throw bad_input("atoms of {} values; {} layers of {} heads of {} make signals of {}", atoms.cols(),
                      layout.layers, layout.heads, layout.head_dim, layout.signal_width());
    check_atoms(atoms);
    normalization.check(num_layers, layout.layer_width());
  }
};

/// Divides each row by its norm, taken in double. Rows whose norm is 1 within 1e-6 (the rounding of their entries) are left as they are, so
/// that a second call changes nothing. Rows of zeros, or not finite, are left alone too; returns their number.
size_t normalize_atoms(MatrixView<float> atoms);

/// Fills atoms with uniform random rows of norm 1 (He et al., 2015; the paper's start).
void kaiming_atoms(uint64_t seed, MatrixView<float> atoms);

/// x rounded to the nearest integer, ties to even, by an addition, which compilers vectorize for every processor.
/// |x| <= 2^22: then 1.5 * 2^23 + x rounds to an integer.
inline int32_t rounded(float x) {
  constexpr float kShift = 0x1.8p23f;
  return std::bit_cast<int32_t>(x + kShift) - std::bit_cast<int32_t>(kShift);
}

}  // namespace kvcodec
