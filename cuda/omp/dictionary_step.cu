// Steps of dictionary training along the gradient (lib/sparse/train.hpp).
#include "cuda/omp/dictionary_step.cuh"
#include "cuda/runtime/kernel.cuh"

namespace kvcodec::cuda {

constexpr unsigned kStepThreads = 128;
constexpr unsigned kStepWarps = kStepThreads / kWarp;

__global__ void __launch_bounds__(kStepThreads) subtract_signals(TrainingBatch batch) {
  const size_t values = size_t{batch.signals} * batch.width;
  for (size_t i = size_t{blockIdx.x} * kStepThreads + threadIdx.x; i < values;
       i += size_t{gridDim.x} * kStepThreads)
    batch.residuals[i] = batch.batch[i] - batch.residuals[i];
}

/// A thread per signal: the sums are in one order.
__global__ void __launch_bounds__(kStepThreads)
    signal_energies(TrainingBatch batch, double* energies, double* left) {
  const size_t signal = size_t{blockIdx.x} * kStepThreads + threadIdx.x;
  if (signal >= batch.signals) return;
  const float *y = batch.batch + signal * batch.width, *r = batch.residuals + signal * batch.width;
  double energy = 0, rest = 0;
#pragma unroll 8
  for (unsigned c = 0; c < batch.width; ++c) {
    energy += static_cast<double>(y[c]) * static_cast<double>(y[c]);
    rest += static_cast<double>(r[c]) * static_cast<double>(r[c]);
  }
  energies[signal] = energy, left[signal] = rest;
}

/// A thread per pair.
__global__ void __launch_bounds__(kStepThreads)
    mark_places(TrainingBatch codes, TrainingWindow window, uint32_t* uses) {
  const size_t pair = size_t{blockIdx.x} * kStepThreads + threadIdx.x;
  const size_t in_window = pair / codes.sparsity, k = pair % codes.sparsity,
               signal = window.first + in_window;
  if (in_window >= window.count || signal >= codes.signals || k >= codes.counts[signal]) return;
  const uint32_t atom = codes.ids[signal * codes.sparsity + k];
  window.places[size_t{atom} * window.count + in_window] =
      static_cast<uint16_t>(k + 1);  // an atom is once in a code
  atomicAdd(&uses[atom], 1u);
}

/// A block per atom: signals of the window that have it are listed in their order, 128 at a time, and their
/// residuals added up, a thread per channel.
__global__ void __launch_bounds__(kStepThreads)
    add_gradients(TrainingBatch codes, TrainingWindow window, float factor, TrainedAtoms atoms) {
  KVCODEC_SHARED_ARRAY(uint32_t, signals, kStepThreads);
  KVCODEC_SHARED_ARRAY(float, weights, kStepThreads);
  KVCODEC_SHARED_ARRAY(unsigned, ballots, kStepWarps);
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const uint16_t* own = window.places + size_t{blockIdx.x} * window.count;
  const unsigned width = codes.width;
  float* gradient = atoms.gradients + size_t{blockIdx.x} * width;
  for (unsigned from = 0; from < window.count; from += kStepThreads) {
    const unsigned i = from + threadIdx.x;
    const unsigned place = i < window.count ? own[i] : 0;
    const unsigned ballot = __ballot_sync(kAllLanes, place != 0);
    __syncthreads();  // the list before is used up
    if (lane == 0) ballots[warp] = ballot;
    __syncthreads();
    unsigned count = 0, before = 0;
    for (unsigned w = 0; w < kStepWarps; ++w) {
      if (w == warp) before = count;
      count += static_cast<unsigned>(__popc(ballots[w]));
    }
    if (count == 0) continue;  // the whole block
    if (place != 0) {
      const unsigned at = before + static_cast<unsigned>(__popc(ballot & ((1u << lane) - 1)));
      signals[at] = window.first + i;
      weights[at] = factor * codes.coefficients[size_t{window.first + i} * codes.sparsity + place - 1];
    }
    __syncthreads();
    for (unsigned c = threadIdx.x; c < width; c += kStepThreads) {
      float sum = gradient[c];
#pragma unroll 4
      for (unsigned k = 0; k < count; ++k)
        sum += weights[k] * codes.residuals[size_t{signals[k]} * width + c];
      gradient[c] = sum;
    }
  }
}

/// A block per atom.
__global__ void __launch_bounds__(kStepThreads) take_step(GradientStep step, TrainedAtoms atoms) {
  KVCODEC_SHARED_ARRAY(double, norm, 1);
  const unsigned width = atoms.width;
  const float* gradient = atoms.gradients + size_t{blockIdx.x} * width;
  float* row = atoms.rows + size_t{blockIdx.x} * atoms.stride;
  for (unsigned c = threadIdx.x; c < width; c += kStepThreads) {
    const float slope = gradient[c];
    if (step.adam) {
      const size_t at = size_t{blockIdx.x} * width + c;
      const float mean = step.keep_mean * atoms.mean[at] + (1 - step.keep_mean) * slope;
      const float variance =
          step.keep_variance * atoms.variance[at] + (1 - step.keep_variance) * (slope * slope);
      atoms.mean[at] = mean, atoms.variance[at] = variance;
      row[c] -= step.rate * mean / (sqrtf(variance * step.variance_correction) + step.floor);
    } else {
      row[c] -= step.rate * slope;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {  // in the order of channels
    double energy = 0;
#pragma unroll 8
    for (unsigned c = 0; c < width; ++c) energy += static_cast<double>(row[c]) * static_cast<double>(row[c]);
    norm[0] = sqrt(energy);
  }
  __syncthreads();
  const double own = norm[0];
  if (!(own > 0) || !(own < INFINITY)) {
    if (threadIdx.x == 0) *atoms.unusable = 1;
    return;
  }
  if (fabs(own - 1) <= kNormRounding) return;
  for (unsigned c = threadIdx.x; c < width; c += kStepThreads)
    row[c] = static_cast<float>(static_cast<double>(row[c]) / own);
}

// Launchers ---------------------------------------------------------------------------------------

Status run_residuals(const TrainingBatch& batch, double* energies, double* left, StreamHandle stream) {
  constexpr unsigned kMaxBlocks = 4096;  // several for each multiprocessor of any device
  const unsigned blocks = divide_up(size_t{batch.signals} * batch.width, kStepThreads);
  const Status status =
      launch(subtract_signals, blocks < kMaxBlocks ? blocks : kMaxBlocks, kStepThreads, 0, stream, batch);
  if (status != 0) return status;
  return launch(signal_energies, divide_up(batch.signals, kStepThreads), kStepThreads, 0, stream, batch,
                energies, left);
}

Status run_places(const TrainingBatch& batch, const TrainingWindow& window, uint32_t* uses,
                  StreamHandle stream) {
  return launch(mark_places, divide_up(size_t{window.count} * batch.sparsity, kStepThreads), kStepThreads, 0,
                stream, batch, window, uses);
}

Status run_gradients(const TrainingBatch& batch, const TrainingWindow& window, float factor,
                     const TrainedAtoms& atoms, StreamHandle stream) {
  return launch(add_gradients, atoms.count, kStepThreads, 0, stream, batch, window, factor, atoms);
}

Status run_step(const GradientStep& step, const TrainedAtoms& atoms, StreamHandle stream) {
  return launch(take_step, atoms.count, kStepThreads, 0, stream, step, atoms);
}

}  // namespace kvcodec::cuda
