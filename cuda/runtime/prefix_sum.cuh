// Prefix sums inside a block of threads.
#pragma once

#include "cuda/runtime/kernel.cuh"

namespace kvcodec::cuda {

/// Sum of `own` over the threads before this one among `warps` warps from first_warp on; total: over all of
/// those. sums: shared, one for each warp of the block, at most 32. All threads of the block, groups of warps
/// each for themselves; what is read and written around it needs barriers of its own.
template <class Sum>
__device__ __forceinline__ Sum prefix_sum(Sum own, unsigned first_warp, unsigned warps, Sum* sums,
                                          Sum& total) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Sum sum = own;
#pragma unroll
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const Sum below = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += below;
  }
  __syncthreads();  // the sums of the call before are read
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  Sum before = 0;
  total = 0;
  for (unsigned w = first_warp; w < first_warp + warps; ++w) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  return before + sum - own;
}

/// The same over the whole block.
template <class Sum>
__device__ __forceinline__ Sum prefix_sum(Sum own, Sum* sums, Sum& total) {
  return prefix_sum(own, 0, blockDim.x / kWarp, sums, total);
}

}  // namespace kvcodec::cuda
