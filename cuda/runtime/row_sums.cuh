// Sums of rows that stand anywhere.
#pragma once

#include "cuda/runtime/kernel.cuh"

namespace kvcodec::cuda {

/// Column j of rows ids[first], ..., ids[end - 1], each of d floats, added up in double in that order, as lib
/// does. Four loads are on their way together.
__device__ __forceinline__ double sum_of_rows(const float* rows, uint32_t d, unsigned j, const uint32_t* ids,
                                              uint64_t first, uint64_t end) {
  double sum = 0;
  uint64_t i = first;
  for (; i + 4 <= end; i += 4) {
    float ahead[4];
#pragma unroll
    for (unsigned n = 0; n < 4; ++n) ahead[n] = rows[size_t{ids[i + n]} * d + j];
#pragma unroll
    for (unsigned n = 0; n < 4; ++n) sum += static_cast<double>(ahead[n]);
  }
  for (; i < end; ++i) sum += static_cast<double>(rows[size_t{ids[i]} * d + j]);
  return sum;
}

}  // namespace kvcodec::cuda
