// Declares the functions of kernels headers once per level (lib/core/cpu.hpp), in namespaces named after the levels. Where a processor is
// not an x86-64, the wide names stand for the scalar functions, and no wide file is compiled.
#pragma once

/// The level that a body is compiled for, and its number of floats in a register.
#ifdef __AVX512F__
#define KVCODEC_LEVEL avx512
#define KVCODEC_REGISTER_FLOATS 16
#elif defined(__AVX2__)
#define KVCODEC_LEVEL avx2
#define KVCODEC_REGISTER_FLOATS 8
#else
#define KVCODEC_LEVEL scalar
#define KVCODEC_REGISTER_FLOATS 4
#endif

#ifdef __x86_64__
/// Declarations of level `level`; elsewhere the name stands for that of level `lower`.
#define KVCODEC_WIDE_VARIANT(level, lower, ...) \
  namespace level {                             \
  __VA_ARGS__                                   \
  }
#else
#define KVCODEC_WIDE_VARIANT(level, lower, ...) namespace level = lower;
#endif

/// Declarations of all levels; every processor has them.
#define KVCODEC_VARIANTS(...)                     \
  namespace scalar {                              \
  __VA_ARGS__                                     \
  }                                               \
  KVCODEC_WIDE_VARIANT(avx2, scalar, __VA_ARGS__) \
  KVCODEC_WIDE_VARIANT(avx512, avx2, __VA_ARGS__)
