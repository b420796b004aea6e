// Vectors as wide as the registers of the instruction set that a file is compiled for: AVX2's 256 bits or
// AVX-512's 512. For the bodies of wide kernels only (lib/core/cpu.hpp). Arithmetic, comparisons and shifts are the
// compiler's operators; this file has the operations without an operator. Everything is in an unnamed
// namespace, so that no file is linked to another's copy, compiled for another instruction set.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KVCODEC_INLINE __attribute__((always_inline, unused)) inline

namespace kvcodec::vectors {
namespace {

#ifdef __AVX512F__
constexpr size_t kBytes = 64;
#define KVCODEC_BY_WIDTH(avx2, avx512) avx512
#else
constexpr size_t kBytes = 32;
#define KVCODEC_BY_WIDTH(avx2, avx512) avx2
#endif
constexpr size_t kWidth = kBytes / sizeof(float);  // floats of a vector

typedef float Floats __attribute__((vector_size(kBytes)));
typedef int32_t Ints __attribute__((vector_size(kBytes)));
typedef uint32_t Words __attribute__((vector_size(kBytes)));
typedef int64_t Longs __attribute__((vector_size(kBytes)));
typedef int16_t Shorts __attribute__((vector_size(kBytes)));
typedef uint16_t Halves
    __attribute__((vector_size(kBytes / 2)));  // f16, bf16 or 16-bit integers, kWidth of them
typedef KVCODEC_BY_WIDTH(__m256i, __m512i) Register;
typedef KVCODEC_BY_WIDTH(__m128i, __m256i) HalfRegister;

// Loads and stores need no alignment. (Through a struct: GCC 12 keeps a vector copied by memcpy in memory, not in a register.)

template <class Vector>
struct __attribute__((packed, may_alias)) Unaligned {
  Vector value;
};

template <class Vector, class Element>
KVCODEC_INLINE Vector load_as(const Element* from) {
  return ((const Unaligned<Vector>*)from)->value;
}
KVCODEC_INLINE Floats load(const float* from) { return load_as<Floats>(from); }
KVCODEC_INLINE Shorts load(const int16_t* from) { return load_as<Shorts>(from); }
KVCODEC_INLINE Halves load(const uint16_t* from) { return load_as<Halves>(from); }
// By intrinsics, since GCC 12 converts the bytes of a vector one by one.
#ifdef __AVX512F__
KVCODEC_INLINE Ints load_widened(const uint8_t* from) {
  return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
}
#else
KVCODEC_INLINE Ints load_widened(const uint8_t* from) {
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
}
#endif

template <class Vector, class Element>
KVCODEC_INLINE void store(Vector value, Element* to) {
  ((Unaligned<Vector>*)to)->value = value;
}

// Loads and stores of the first n of kWidth elements. Loads set the others to 0.

#ifdef __AVX512F__
KVCODEC_INLINE __mmask16 first_lanes(size_t n) { return (__mmask16)((1u << n) - 1); }
KVCODEC_INLINE Floats load_first(const float* from, size_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), from);
}
KVCODEC_INLINE Halves load_first(const uint16_t* from, size_t n) {
  return (Halves)_mm256_maskz_loadu_epi16(first_lanes(n), from);
}
KVCODEC_INLINE void store_first(Floats value, float* to, size_t n) {
  _mm512_mask_storeu_ps(to, first_lanes(n), value);
}
KVCODEC_INLINE void store_first(Halves value, uint16_t* to, size_t n) {
  _mm256_mask_storeu_epi16(to, first_lanes(n), (__m256i)value);
}
#else
KVCODEC_INLINE Floats load_first(const float* from, size_t n) {
  const __m256i counting = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), counting));
}
KVCODEC_INLINE Halves load_first(const uint16_t* from, size_t n) {
  uint16_t lanes[kWidth] = {};
  memcpy(lanes, from, n * sizeof(*from));
  return load(lanes);
}
KVCODEC_INLINE void store_first(Floats value, float* to, size_t n) {
  float lanes[kWidth];
  store(value, lanes);
  memcpy(to, lanes, n * sizeof(*to));
}
KVCODEC_INLINE void store_first(Halves value, uint16_t* to, size_t n) {
  uint16_t lanes[kWidth];
  store(value, lanes);
  memcpy(to, lanes, n * sizeof(*to));
}
#endif

/// The first n elements, or all of them if n is larger.
KVCODEC_INLINE void store_up_to(Floats value, float* to, size_t n) {
#ifdef __AVX512F__
  store_first(value, to, n < kWidth ? n : kWidth);
#else
  n < kWidth ? store_first(value, to, n) : store(value, to);
#endif
}

KVCODEC_INLINE Floats spread(float value) { return KVCODEC_BY_WIDTH(_mm256_set1_ps, _mm512_set1_ps)(value); }
KVCODEC_INLINE Ints spread(int32_t value) {
  return (Ints)KVCODEC_BY_WIDTH(_mm256_set1_epi32, _mm512_set1_epi32)(value);
}

KVCODEC_INLINE Ints bits_of(Floats value) { return (Ints)value; }
KVCODEC_INLINE Floats floats_of(Ints bits) { return (Floats)bits; }
KVCODEC_INLINE Floats as_floats(Ints value) { return __builtin_convertvector(value, Floats); }

/// a * b + c, rounded once.
KVCODEC_INLINE Floats fused(Floats a, Floats b, Floats c) {
  return KVCODEC_BY_WIDTH(_mm256_fmadd_ps, _mm512_fmadd_ps)(a, b, c);
}

KVCODEC_INLINE Floats magnitude(Floats value) { return floats_of(bits_of(value) & 0x7fffffff); }

/// The larger or the smaller value of each lane; b's where one of the two is NaN.
KVCODEC_INLINE Floats larger(Floats a, Floats b) {
  return KVCODEC_BY_WIDTH(_mm256_max_ps, _mm512_max_ps)(a, b);
}
KVCODEC_INLINE Floats smaller(Floats a, Floats b) {
  return KVCODEC_BY_WIDTH(_mm256_min_ps, _mm512_min_ps)(a, b);
}

/// The largest lane. No lane is NaN.
KVCODEC_INLINE float largest_of(Floats value) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps(value);
#else
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#endif
}

// 16-bit floats.

KVCODEC_INLINE Floats widen_f16(Halves value) {
  return KVCODEC_BY_WIDTH(_mm256_cvtph_ps, _mm512_cvtph_ps)((HalfRegister)value);
}
KVCODEC_INLINE Halves narrow_f16(Floats value) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  HalfRegister halves = KVCODEC_BY_WIDTH(_mm256_cvtps_ph, _mm512_cvtps_ph)(value, kNearest);
  asm("" : "+x"(halves));  // into a register: straight to memory it takes a third longer (Zen 4)
  return (Halves)halves;
}
KVCODEC_INLINE Floats widen_bf16(Halves value) {
  const auto wide = (Ints)KVCODEC_BY_WIDTH(_mm256_cvtepu16_epi32, _mm512_cvtepu16_epi32)((HalfRegister)value);
  return floats_of(wide << 16);
}

/// The low halves of 32-bit integers below 65536.
KVCODEC_INLINE Halves low_halves(Words value) {
#ifdef __AVX512F__
  return (Halves)_mm512_cvtepi32_epi16((__m512i)value);
#else
  // packus works on the two 128-bit halves apart: the results lie in quarters 0 and 2.
  const __m256i packed = _mm256_packus_epi32((__m256i)value, (__m256i)value);
  return (Halves)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000));
#endif
}

#ifndef __AVX512F__
/// Stores the lowest byte of each lane.
KVCODEC_INLINE void store_low_bytes(__m256i value, uint8_t* to) {
  const __m256i low_bytes = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                             0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i gathered = _mm256_shuffle_epi8(value, low_bytes);
  const __m128i both =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(gathered), _mm256_extracti128_si256(gathered, 1));
  _mm_storel_epi64((__m128i*)to, both);
}
#endif

/// The bits of floats rounded to bf16, ties to even, in the upper halves; the lower halves are not cleared. No value is NaN.
KVCODEC_INLINE Words bits_near_bf16(Floats value) {
  const auto bits = (Words)value;
  return bits + 0x7fff + ((bits >> 16) & 1);
}

// Sums of 16 floats have the same lanes and the same order in every instruction set: the lanes are added
// as a tree, the upper half onto the lower half until one is left.

struct FloatLanes {
  static constexpr size_t kCount = 16, kParts = kCount / kWidth;
  Floats parts[kParts];
};

/// The tree of one vector's lanes.
KVCODEC_INLINE float sum_of(Floats value) {
#ifdef __AVX512F__
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
#else
  const __m256 eight = value;
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

KVCODEC_INLINE int32_t sum_of(Ints value) {
#ifdef __AVX512F__
  return _mm512_reduce_add_epi32((__m512i)value);
#else
  __m128i four =
      _mm_add_epi32(_mm256_castsi256_si128((__m256i)value), _mm256_extracti128_si256((__m256i)value, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b1110));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0b0001)));
#endif
}

template <class Lanes>
KVCODEC_INLINE auto sum_of(const Lanes& lanes) {
  if constexpr (Lanes::kParts == 1)
    return sum_of(lanes.parts[0]);
  else
    return sum_of(lanes.parts[0] + lanes.parts[1]);
}

/// Prefetches the cache line of an address that will be read soon.
KVCODEC_INLINE void look_ahead(const void* at) { _mm_prefetch((const char*)at, _MM_HINT_T0); }

}  // namespace
}  // namespace kvcodec::vectors
