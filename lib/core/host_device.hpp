// Small functions on one element that the CPU and the device share. They are plain inline functions for a C++ compiler and run on both
// sides for a CUDA compiler, so tests on the host also test them for kernels. Headers that kernels include use this one and nothing that
// needs fmt (lib/core/error.hpp).
//
// CUDA sources are compiled with -fmad=false: like -ffp-contract=off here, a multiplication and an addition
// are fused where std::fma says so and nowhere else, so both sides give the same floats.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KVCODEC_HD __host__ __device__ __forceinline__
#else
#define KVCODEC_HD inline
#endif

namespace kvcodec {

/// std::bit_cast for both sides.
KVCODEC_HD uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
KVCODEC_HD float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

}  // namespace kvcodec
