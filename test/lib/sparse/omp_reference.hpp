// Orthogonal matching pursuit in its textbook form (Pati, Rezaiifar and Krishnaprasad, 1993), and orthogonal least squares (Chen,
// Billings and Luo, 1989), in double and one signal at a time: the reference for lib/sparse/omp.hpp. Far too slow for anything
// else.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"

namespace kvcodec {

struct ReferenceCode {
  std::vector<uint32_t> ids;         ///< in the order of selection
  std::vector<double> coefficients;  ///< least squares over ids
  double residual = 0;               ///< |y - D x|
  double narrowest = 1;  ///< the least relative margin by which an atom was ahead of the next best one
};

/// The choice of the next atom: by the largest |d . r|, or by the smallest remaining error, which means the largest |d . r| / |d'|,
/// where d' is the part of d outside the span of the chosen atoms.
enum class ReferenceSelection : uint8_t { correlation, error };

/// Chooses at most `sparsity` atoms of atoms: (n, m) for signal: m values; fewer once |y - D x| <= error_target |y| or no atom that
/// is independent of the chosen ones is left.
ReferenceCode omp_reference(MatrixView<const float> atoms, std::span<const float> signal, size_t sparsity,
                            double error_target = 0,
                            ReferenceSelection selection = ReferenceSelection::correlation);

}  // namespace kvcodec
