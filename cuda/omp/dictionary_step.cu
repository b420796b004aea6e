// Steps of dictionary training along the gradient (lib/sparse/train.hpp).
#include "cuda/omp/dictionary_step.cuh"
#include "cuda/runtime/kernel.cuh"

namespace kvcodec::cuda {

constexpr unsigned kStepThreads = 128;
constexpr unsigned kStepWarps = kStepThreads / kWarp;

__global__ void __launch_bounds__(kStepThreads)
    subtract_signals(const float* batch, float* residuals, size_t values) {
  for (size_t i = size_t{blockIdx.x} * kStepThreads + threadIdx.x; i < values;
       i += size_t{gridDim.x} * kStepThreads)
    residuals[i] = batch[i] - residuals[i];
}

/// A thread per signal: the sums are in one order.
__global__ void __launch_bounds__(kStepThreads)
    signal_energies(const float* batch, const float* residuals, uint32_t signals, uint32_t width,
                    double* energies, double* left) {
  const size_t signal = size_t{blockIdx.x} * kStepThreads + threadIdx.x;
  if (signal >= signals) return;
  const float *y = batch + signal * width, *r = residuals + signal * width;
  double energy = 0, rest = 0;
#pragma unroll 8
  for (unsigned c = 0; c < width; ++c) {
    energy += static_cast<double>(y[c]) * static_cast<double>(y[c]);
    rest += static_cast<double>(r[c]) * static_cast<double>(r[c]);
  }
  energies[signal] = energy, left[signal] = rest;
}

/// A thread per pair.
__global__ void __launch_bounds__(kStepThreads)
    mark_places(TrainingCodes codes, uint32_t first, uint32_t window, uint16_t* places, uint32_t* uses) {
  const size_t pair = size_t{blockIdx.x} * kStepThreads + threadIdx.x;
  const size_t in_window = pair / codes.sparsity, k = pair % codes.sparsity, signal = first + in_window;
  if (in_window >= window || signal >= codes.signals || k >= codes.counts[signal]) return;
  const uint32_t atom = codes.ids[signal * codes.sparsity + k];
  places[size_t{atom} * window + in_window] = static_cast<uint16_t>(k + 1);  // an atom is once in a code
  atomicAdd(&uses[atom], 1u);
}

/// A block per atom: signals of the window that have it are listed in their order, 128 at a time, and their
/// residuals added up, a thread per channel.
__global__ void __launch_bounds__(kStepThreads)
    add_gradients(TrainingCodes codes, const float* residuals, uint32_t first, uint32_t window,
                  const uint16_t* places, uint32_t width, float factor, float* gradients) {
  KVCODEC_SHARED_ARRAY(uint32_t, signals, kStepThreads);
  KVCODEC_SHARED_ARRAY(float, weights, kStepThreads);
  KVCODEC_SHARED_ARRAY(unsigned, ballots, kStepWarps);
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const uint16_t* own = places + size_t{blockIdx.x} * window;
  float* gradient = gradients + size_t{blockIdx.x} * width;
  for (unsigned from = 0; from < window; from += kStepThreads) {
    const unsigned i = from + threadIdx.x;
    const unsigned place = i < window ? own[i] : 0;
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
      signals[at] = first + i;
      weights[at] = factor * codes.coefficients[size_t{first + i} * codes.sparsity + place - 1];
    }
    __syncthreads();
    for (unsigned c = threadIdx.x; c < width; c += kStepThreads) {
      float sum = gradient[c];
#pragma unroll 4
      for (unsigned k = 0; k < count; ++k) sum += weights[k] * residuals[size_t{signals[k]} * width + c];
      gradient[c] = sum;
    }
  }
}

/// A block per atom.
__global__ void __launch_bounds__(kStepThreads)
    take_step(GradientStep step, const float* gradients, float* means, float* variances, float* rows,
              uint32_t width, uint32_t stride, uint32_t* unusable) {
  KVCODEC_SHARED_ARRAY(double, norm, 1);
  const float* gradient = gradients + size_t{blockIdx.x} * width;
  float* row = rows + size_t{blockIdx.x} * stride;
  for (unsigned c = threadIdx.x; c < width; c += kStepThreads) {
    const float slope = gradient[c];
    if (step.adam) {
      const size_t at = size_t{blockIdx.x} * width + c;
      const float mean = step.keep_mean * means[at] + (1 - step.keep_mean) * slope;
      const float variance = step.keep_variance * variances[at] + (1 - step.keep_variance) * (slope * slope);
      means[at] = mean, variances[at] = variance;
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
    if (threadIdx.x == 0) *unusable = 1;
    return;
  }
  if (fabs(own - 1) <= kNormRounding) return;
  for (unsigned c = threadIdx.x; c < width; c += kStepThreads)
    row[c] = static_cast<float>(static_cast<double>(row[c]) / own);
}

// Launchers ---------------------------------------------------------------------------------------

namespace {

/// Blocks of a kernel that goes over values: several for each multiprocessor of any device.
constexpr unsigned kMaxBlocks = 4096;

}  // namespace

Status run_residuals(const float* batch, float* residuals, uint32_t signals, uint32_t width, double* energies,
                     double* left, StreamHandle stream) {
  const size_t values = size_t{signals} * width;
  const unsigned blocks = divide_up(values, kStepThreads);
  const Status status = launch(subtract_signals, blocks < kMaxBlocks ? blocks : kMaxBlocks, kStepThreads, 0,
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
