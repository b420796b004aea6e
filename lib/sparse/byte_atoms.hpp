// Atoms in 8 bits: levels of -127 to 127 with one scale per atom, chosen so that the atom's norm is 1 again.
// The rounding is near 6e-5 of an atom's energy (its largest entry is some 3.3 standard deviations, a level
// 1/127 of it), which vanishes beside what sparse codes leave of a signal; and a slice of the dictionary
// then stays in the processor's cache.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/core/names.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// How a dictionary file keeps its atoms; coding uses them as they come back.
enum class AtomType : uint8_t { f32, i8 };
constexpr auto names_of(AtomType) { return std::to_array<std::string_view>({"f32", "i8"}); }

/// Atom i is scales[i] * levels.row(i), each product rounded to f32.
struct ByteAtoms {
  Matrix<int8_t> levels;      ///< (n, m), none of them -128
  std::vector<float> scales;  ///< n, positive

  bool empty() const { return scales.empty(); }
};

/// The nearest levels, the largest entry of each atom at +-127; scales of 1 / |levels|. Of what
/// floats_of(round_to_bytes(x)) gives, the levels and scales are the same again. atoms: finite, no row of
/// zeros.
ByteAtoms round_to_bytes(MatrixView<const float> atoms);

/// The scale that gives these levels norm 1.
float scale_of(std::span<const int8_t> levels);

Matrix<float> floats_of(const ByteAtoms& atoms);

}  // namespace kvcodec
