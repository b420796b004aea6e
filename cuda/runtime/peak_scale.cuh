// Powers of two that bring floats into the range of f16, and back.
#pragma once

#include "cuda/runtime/kernel.cuh"
#include "lib/core/half_bits.hpp"

namespace kvcodec::cuda {

struct PeakScale {
  float up, down;  ///< each the inverse of the other
};

/// What brings `peak`, the largest magnitude there is, to at least 2^top and below twice that, or as near to
/// it as powers of two go that have an inverse.
__device__ __forceinline__ PeakScale peak_scale(float peak, int top) {
  int exponent = static_cast<int>(bits_of(peak) >> 23) - 127;
  if (exponent < -100) exponent = -100;
  const auto power_of_two = [](int by) { return float_of(static_cast<uint32_t>(by + 127) << 23); };
  return {power_of_two(top - exponent), power_of_two(exponent - top)};
}

}  // namespace kvcodec::cuda
