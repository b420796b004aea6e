#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "lib/attention/attention_kernels.hpp"

#define KVCODEC_INLINE inline __attribute__((always_inline))

namespace kvcodec::attention_kernels {
namespace {

/// Lanes 0..7 and 8..15.
struct Floats {
  __m256 low, high;
};

KVCODEC_INLINE Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
KVCODEC_INLINE Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
KVCODEC_INLINE void store(const Floats& value, float* to) {
  _mm256_storeu_ps(to, value.low);
  _mm256_storeu_ps(to + 8, value.high);
}
KVCODEC_INLINE Floats spread(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
KVCODEC_INLINE Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
KVCODEC_INLINE void look_ahead(const char* at) { _mm_prefetch(at, _MM_HINT_T0); }

KVCODEC_INLINE void fold(const Floats* vectors, float* out) {
  for (size_t i = 0; i < kLanes; ++i) {
    const __m256 eight = _mm256_add_ps(vectors[i].low, vectors[i].high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    out[i] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
}

template <RowType>
struct Row;

template <>
struct Row<kF32> {
  typedef float Element;
  static KVCODEC_INLINE Floats load(const Element* from) { return attention_kernels::load(from); }
  static Floats load_some(const Element* from, size_t n) {
    Element padded[kLanes] = {};
    memcpy(padded, from, n * sizeof(Element));
    return load(padded);
  }
};

template <>
struct Row<kF16> {
  typedef uint16_t Element;
  static KVCODEC_INLINE Floats load(const Element* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from)),
            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + 8)))};
  }
  static Floats load_some(const Element* from, size_t n) {
    Element padded[kLanes] = {};
    memcpy(padded, from, n * sizeof(Element));
    return load(padded);
  }
};

template <>
struct Row<kBf16> {
  typedef uint16_t Element;
  static KVCODEC_INLINE __m256 widen(const Element* from) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static KVCODEC_INLINE Floats load(const Element* from) { return {widen(from), widen(from + 8)}; }
  static Floats load_some(const Element* from, size_t n) {
    Element padded[kLanes] = {};
    memcpy(padded, from, n * sizeof(Element));
    return load(padded);
  }
};

}  // namespace
}  // namespace kvcodec::attention_kernels

#include "lib/attention/attention_kernels_body.hpp"

const kvcodec::attention_kernels::Table& kvcodec::attention_kernels::avx2::table() { return kTable; }
