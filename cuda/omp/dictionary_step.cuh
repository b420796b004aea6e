// Launchers of the kernels of dictionary_step.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"
#include "lib/sparse/gradient_step.hpp"

namespace kvcodec::cuda {

/// Codes of signals, as orthogonal matching pursuit leaves them.
struct TrainingCodes {
  const uint32_t* ids = nullptr;        ///< (signals, sparsity)
  const float* coefficients = nullptr;  ///< (signals, sparsity)
  const uint32_t* counts = nullptr;     ///< pairs of a signal
  uint32_t signals = 0, sparsity = 0;
};

/// residuals = batch - residuals, which are the signals of the codes before; energies[i] and left[i] are
/// those of the batch's signal and of its residual, summed in double in the order of channels. All (signals,
/// width).
[[nodiscard]] Status run_residuals(const float* batch, float* residuals, uint32_t signals, uint32_t width,
                                   double* energies, double* left, StreamHandle stream);

/// places[atom * window + i] = 1 + the place that the atom has in the code of signal first + i, for signals
/// [first, first + window) that are there; places must be zeros. uses[atom] grows by its pairs.
[[nodiscard]] Status run_places(const TrainingCodes& codes, uint32_t first, uint32_t window, uint16_t* places,
                                uint32_t* uses, StreamHandle stream);

/// gradients (atoms, width) grow by the pairs of those signals, in their order.
[[nodiscard]] Status run_gradients(const TrainingCodes& codes, const float* residuals, uint32_t first,
                                   uint32_t window, const uint16_t* places, uint32_t atoms, uint32_t width,
                                   float factor, float* gradients, StreamHandle stream);

/// A step for atoms in rows of `stride` floats, which are brought back to norm 1. *unusable becomes 1 where
/// one has no norm that could be.
[[nodiscard]] Status run_step(const GradientStep& step, const float* gradients, float* mean, float* variance,
                              float* rows, uint32_t atoms, uint32_t width, uint32_t stride,
                              uint32_t* unusable, StreamHandle stream);

}  // namespace kvcodec::cuda
