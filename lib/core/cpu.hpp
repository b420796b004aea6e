// Which wide instructions to use. Every variant gives the same bits; the choice is about speed only.
//
// How to add a wide variant (half.cpp is the model)
//   1. <name>_kernels.hpp declares the function in namespaces scalar, avx2, avx512: raw pointers and sizes.
//   2. <name>.cpp holds the scalar reference and the public function, which looks at simd_level() once.
//   3. <name>_avx2.cpp, <name>_avx512.cpp hold the others; CMake gives files so named the flags of their set.
//   4. A test runs every level (test/unit/simd_levels.hpp) over sizes and misalignments against scalar.
// A wide file includes only <immintrin.h>, C headers and its kernels header, and what it defines stands in an
// unnamed namespace: a shared inline function or template (std::span, half.hpp) could be emitted with wide
// instructions here, and the linker may take that copy for every file, on machines without them too.
#pragma once

namespace kvcodec {

enum class SimdLevel { scalar = 0, avx2 = 1, avx512 = 2 };

/// The level in force: the widest the machine has (avx2 means AVX2 + FMA + F16C; avx512 means F, BW, CD, DQ,
/// VL), lowered by the environment variable KVCODEC_SIMD=scalar|avx2|avx512 or by limit_simd.
SimdLevel simd_level();

/// Lowers the level for this process (tests and benchmarks); levels the machine lacks are not raised to.
void limit_simd(SimdLevel level);

const char* name_of(SimdLevel level);

}  // namespace kvcodec
