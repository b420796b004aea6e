#include "cuda/omp/dictionary_step.cuh"
#include "cuda/omp/dictionary_step_kernels.cuh"

namespace kvcodec::cuda {
namespace {

unsigned divide_up(size_t n, size_t by) { return static_cast<unsigned>((n + by - 1) / by); }

/// Blocks of a kernel that goes over values: several for each multiprocessor of any device.
constexpr unsigned kMostBlocks = 4096;

}  // namespace

Status run_residuals(const float* batch, float* residuals, uint32_t signals, uint32_t width, double* energies,
                     double* left, StreamHandle stream) {
  const size_t values = size_t{signals} * width;
  const unsigned blocks = divide_up(values, kStepThreads);
  const Status status = launch(subtract_signals, blocks < kMostBlocks ? blocks : kMostBlocks, kStepThreads, 0,
                               stream, batch, residuals, values);
  if (status != 0) return status;
  return launch(signal_energies, divide_up(signals, kStepThreads), kStepThreads, 0, stream, batch, residuals,
                signals, width, energies, left);
}

Status run_places(const TrainingCodes& codes, uint32_t first, uint32_t window, uint16_t* places,
                  uint32_t* uses, StreamHandle stream) {
  return launch(mark_places, divide_up(size_t{window} * codes.sparsity, kStepThreads), kStepThreads, 0,
                stream, codes, first, window, places, uses);
}

Status run_gradients(const TrainingCodes& codes, const float* residuals, uint32_t first, uint32_t window,
                     const uint16_t* places, uint32_t atoms, uint32_t width, float factor, float* gradients,
                     StreamHandle stream) {
  return launch(add_gradients, atoms, kStepThreads, 0, stream, codes, residuals, first, window, places, width,
                factor, gradients);
}

Status run_step(const GradientStep& step, const float* gradients, float* mean, float* variance, float* rows,
                uint32_t atoms, uint32_t width, uint32_t stride, uint32_t* unusable, StreamHandle stream) {
  return launch(take_step, atoms, kStepThreads, 0, stream, step, gradients, mean, variance, rows, width,
                stride, unusable);
}

}  // namespace kvcodec::cuda
