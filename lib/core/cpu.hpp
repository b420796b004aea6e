// Which wide instructions to use. Every variant gives the same bits; the choice is about speed only.
#pragma once

namespace kvcodec {

enum class SimdLevel { scalar = 0, avx2 = 1, avx512 = 2 };

/// The level in force: the widest the machine has (avx2 means AVX2 + FMA + F16C; avx512 means F, BW, CD, DQ, VL), lowered by
/// the environment variable KVCODEC_SIMD=scalar|avx2|avx512 or by limit_simd.
SimdLevel simd_level();

/// Lowers the level for this process (tests and benchmarks); levels the machine lacks are not raised to.
void limit_simd(SimdLevel level);

const char* name_of(SimdLevel level);

}  // namespace kvcodec
