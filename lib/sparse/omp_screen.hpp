// Screens find the atoms that could be the next one. They look at all atoms with cheap arithmetic whose error they bound, and return the
// few that could win; those are then compared exactly (omp.cpp). Inside lib/sparse only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvcodec {

/// Entries of the Gram matrix and of atoms in 16 bits are multiples of 1 / kWordUnit: below 2^15 with room
/// for norms that are a little above 1.
inline constexpr double kWordUnit = 32000;

/// The Gram matrix as screens see it.
struct GramView {
  const int16_t* words = nullptr;  ///< (atoms, stride), in units of 1 / kWordUnit; null: there is no matrix
  const uint8_t* bytes = nullptr;  ///< the same in 8 bits, or null
  size_t atoms = 0, stride = 0;
  const double* byte_units = nullptr;  ///< of each row of bytes
  const double* peaks = nullptr;       ///< largest |entry| of each row except for the diagonal
  double entry_error = 0;              ///< bound of the words' distance from the products of atoms in float

  const int16_t* row(size_t atom) const { return words + atom * stride; }
};

/// Follows the correlations of all atoms with the residual of one signal.
class Screen {
 public:
  virtual ~Screen() = default;

  /// start: the correlations of all atoms with a signal, within `error`; (stride), changed by the screen.
  virtual void begin(float* start, double error) = 0;
  /// Leaves an atom out from now on.
  virtual void exclude(uint32_t atom) = 0;
  /// Fetches distant memory for an atom that may be added soon.
  virtual void expect(uint32_t /*atom*/) const {}
  /// Takes a new atom, the last of those with coefficients x.
  virtual void add(uint32_t /*atom*/, std::span<const double> /*x*/) {}
  /// Finds the atoms that could have the largest correlation, ascending; correlations that differ by less than twice
  /// `margin` count as equal. Returns a lower bound of the largest correlation.
  virtual double look(std::span<const double> x, double margin, std::vector<uint32_t>& candidates) = 0;
  /// start now has the correlations of the residual at x, with no error.
  virtual void rebase(std::span<const double> /*x*/) {}
  /// True if rebase() cannot lower the error.
  virtual bool exact() const { return true; }
};

/// The fastest screen for pursuits of `capacity` atoms.
std::unique_ptr<Screen> make_screen(const GramView& gram, size_t capacity);

}  // namespace kvcodec
