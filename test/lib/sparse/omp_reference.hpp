// Orthogonal matching pursuit in its textbook form (Pati, Rezaiifar and Krishnaprasad, 1993), in double and one signal at a time: the
// reference for lib/sparse/omp.hpp. Far too slow for anything else.
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

/// Chooses at most `sparsity` atoms of atoms: (n, m) for signal: m values; fewer once |y - D x| <= error_target |y| or no atom that
/// is independent of the chosen ones is left.
ReferenceCode omp_reference(MatrixView<const float> atoms, std::span<const float> signal, size_t sparsity,
                            double error_target = 0);

}  // namespace kvcodec
