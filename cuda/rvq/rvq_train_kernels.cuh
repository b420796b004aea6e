// Sums of outer products in double (lib/rvq/train.cpp).
#pragma once

#include "cuda/runtime/kernel.cuh"
#include "cuda/rvq/rvq_train.cuh"

namespace kvcodec::cuda {

/// Elements of a block: a warp for each of so many rows, a lane per column.
inline constexpr unsigned kOuterRows = 8;

/// A thread per element, which goes over all entries: the order of its sum is that of the entries.
__global__ void __launch_bounds__(kOuterRows* kWarp)
    outer_sums(const double* rows, const double* weights, const double* others, uint32_t count, uint32_t n,
               uint32_t m, double* out) {
  const unsigned i = blockIdx.y * kOuterRows + threadIdx.x / kWarp;
  const unsigned j = blockIdx.x * kWarp + threadIdx.x % kWarp;
  if (i >= n || j >= m) return;
  double sum = 0;
  for (unsigned e = 0; e < count; ++e)
    sum += rows[size_t{e} * n + i] * weights[e] * others[size_t{e} * m + j];
  out[size_t{i} * m + j] = sum;
}

}  // namespace kvcodec::cuda
