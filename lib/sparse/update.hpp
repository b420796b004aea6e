// Ways to bring the atoms of a dictionary nearer to signals whose codes are held fixed, in closed form rather
// than along a gradient. Inside lib/sparse only.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/sparse/omp.hpp"

namespace kvcodec {

/// The pairs of some codes sorted by atom, within an atom by signal, so that what is summed over an atom's
/// signals is summed in one order.
struct PairsByAtom {
  struct Pair {
    uint32_t signal;
    float coefficient;
  };
  std::vector<size_t> offsets;  ///< atoms + 1
  std::vector<Pair> pairs;

  PairsByAtom(const SparseCodes& codes, size_t atoms);
  std::span<const Pair> of(size_t atom) const {
    return std::span(pairs).subspan(offsets[atom], offsets[atom + 1] - offsets[atom]);
  }
};

/// coefficients = keep * coefficients + X'X and signals = keep * signals + X'Y for the signals Y (rows) and
/// their codes X: (atoms, atoms) and (atoms, width).
void add_products(const SparseCodes& codes, const PairsByAtom& pairs, MatrixView<const float> batch,
                  float keep, Matrix<float>& coefficients, Matrix<float>& signals);

/// One pass of block coordinate descent over |Y - X D|^2, one atom after the other with all others as they
/// are: d(j) += (signals(j) - coefficients(j) D) / coefficients(j, j). Atoms that no signal has are left
/// alone. With `unit` each is brought to norm 1 at once (online dictionary learning: Mairal, Bach, Ponce and
/// Sapiro, 2010, their Algorithm 2); without, passes converge to the least-squares dictionary (the method of
/// optimal directions: Engan, Aase and Husoy, 1999). Returns |change|^2 / |D|^2.
double descend(const Matrix<float>& coefficients, const Matrix<float>& signals, bool unit,
               MatrixView<float> atoms);

/// K-SVD's update in its approximate form (Rubinstein, Zibulevsky and Elad, 2008): each atom in turn becomes
/// the direction that its signals have in common once all other atoms are taken off, and their coefficients
/// follow. residuals: (signals, width), Y - X D, changed along.
void ksvd(const PairsByAtom& pairs, MatrixView<float> residuals, MatrixView<float> atoms);

}  // namespace kvcodec
