#include <immintrin.h>
#include <stdint.h>

#include "lib/attention/attention_kernels.hpp"

#define KVCODEC_INLINE inline __attribute__((always_inline))

namespace kvcodec::attention_kernels {
namespace {

typedef __m512 Floats;

KVCODEC_INLINE Floats zero() { return _mm512_setzero_ps(); }
KVCODEC_INLINE Floats load(const float* from) { return _mm512_loadu_ps(from); }
KVCODEC_INLINE void store(Floats value, float* to) { _mm512_storeu_ps(to, value); }
KVCODEC_INLINE Floats spread(float value) { return _mm512_set1_ps(value); }
KVCODEC_INLINE Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
KVCODEC_INLINE void look_ahead(const char* at) { _mm_prefetch(at, _MM_HINT_T0); }

__mmask16 first_lanes(size_t count) { return (__mmask16)((1u << count) - 1); }

/// All 16 trees at once: each step adds one half of the lanes of two vectors to the other and leaves both in
/// one.
KVCODEC_INLINE void fold(const Floats* vectors, float* out) {
  __m512 eight[8], four[4], two[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(vectors[2 * i], vectors[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(vectors[2 * i], vectors[2 * i + 1], 0xee));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0x88),
                            _mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0xdd));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    two[i] = _mm512_add_ps(_mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                           _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));
  const __m512 one =
      _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));
  // Place 4 l + j has vector 4 j + l.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_ps(out, _mm512_permutexvar_ps(order, one));
}

template <RowType>
struct Row;

template <>
struct Row<kF32> {
  typedef float Element;
  static KVCODEC_INLINE Floats load(const Element* from) { return _mm512_loadu_ps(from); }
  static Floats load_some(const Element* from, size_t n) {
    return _mm512_maskz_loadu_ps(first_lanes(n), from);
  }
};

template <>
struct Row<kF16> {
  typedef uint16_t Element;
  static KVCODEC_INLINE Floats load(const Element* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
  }
  static Floats load_some(const Element* from, size_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), from));
  }
};

template <>
struct Row<kBf16> {
  typedef uint16_t Element;
  static KVCODEC_INLINE Floats widen(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static KVCODEC_INLINE Floats load(const Element* from) {
    return widen(_mm256_loadu_si256((const __m256i*)from));
  }
  static Floats load_some(const Element* from, size_t n) {
    return widen(_mm256_maskz_loadu_epi16(first_lanes(n), from));
  }
};

}  // namespace
}  // namespace kvcodec::attention_kernels

#include "lib/attention/attention_kernels_body.hpp"

const kvcodec::attention_kernels::Table& kvcodec::attention_kernels::avx512::table() { return kTable; }
