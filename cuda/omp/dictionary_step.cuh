// Launchers of the kernels of dictionary_step.cu. All pointers are to device memory.
#pragma once

#include <cstdint>

#include "cuda/runtime/status.hpp"
#include "lib/sparse/gradient_step.hpp"

namespace kvcodec::cuda {

/// A batch of signals of a training, and their codes from orthogonal matching pursuit.
struct TrainingBatch {
  const float* batch = nullptr;         ///< (signals, width)
  float* residuals = nullptr;           ///< (signals, width)
  const uint32_t* ids = nullptr;        ///< (signals, sparsity)
  const float* coefficients = nullptr;  ///< (signals, sparsity)
  const uint32_t* counts = nullptr;     ///< pairs of a signal
  uint32_t signals = 0, width = 0, sparsity = 0;
};

/// residuals = batch - residuals, which the caller sets to the decoded signals; energies[i] and left[i] are
/// those of the batch's signal and of its residual, summed in double in the order of channels.
[[nodiscard]] Status run_residuals(const TrainingBatch& batch, double* energies, double* left,
                                   StreamHandle stream);

/// Some signals of a batch, [first, first + count), by the atoms that they have.
struct TrainingWindow {
  uint32_t first = 0, count = 0;
  uint16_t* places =
      nullptr;  ///< (atoms, count): 1 + the place that the atom has in the signal's code, else 0
};
/// Fills `places`, which must be zeros, for existing signals. uses[atom] grows by its pairs.
[[nodiscard]] Status run_places(const TrainingBatch& batch, const TrainingWindow& window, uint32_t* uses,
                                StreamHandle stream);

/// Atoms in rows of `stride` floats during steps along a gradient.
struct TrainedAtoms {
  float* rows = nullptr;
  float *gradients = nullptr, *mean = nullptr, *variance = nullptr;  ///< (count, width) each
  uint32_t count = 0, width = 0, stride = 0;
  uint32_t* unusable = nullptr;  ///< becomes 1 if an atom's norm is not positive and finite
};
/// Gradients grow by `factor` times the pairs of those signals, in their order.
[[nodiscard]] Status run_gradients(const TrainingBatch& batch, const TrainingWindow& window, float factor,
                                   const TrainedAtoms& atoms, StreamHandle stream);
/// A step; atoms are brought back to norm 1.
[[nodiscard]] Status run_step(const GradientStep& step, const TrainedAtoms& atoms, StreamHandle stream);

}  // namespace kvcodec::cuda
