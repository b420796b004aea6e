#include <immintrin.h>

#include "lib/core/half_kernels.hpp"

namespace kvcodec::half_kernels::avx512 {
namespace {

constexpr size_t kLanes = 16;

struct WidenBf16 {
  static __m512 convert(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
};

struct WidenF16 {
  static __m512 convert(__m256i halves) { return _mm512_cvtph_ps(halves); }
};

struct NarrowBf16 {
  static __m256i convert(__m512 values) {
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    const __m512i quieted = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(quieted, 16));
  }
};

struct NarrowF16 {
  static __m256i convert(__m512 values) {
    return _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

__mmask16 first_lanes(size_t count) { return static_cast<__mmask16>((1u << count) - 1); }

template <class Kernel>
void widen(const uint16_t* in, float* out, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    _mm512_storeu_ps(out + i, Kernel::convert(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i))));
  const __mmask16 tail = first_lanes(n - i);
  if (tail) _mm512_mask_storeu_ps(out + i, tail, Kernel::convert(_mm256_maskz_loadu_epi16(tail, in + i)));
}

template <class Kernel>
void narrow(const float* in, uint16_t* out, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), Kernel::convert(_mm512_loadu_ps(in + i)));
  const __mmask16 tail = first_lanes(n - i);
  if (tail) _mm256_mask_storeu_epi16(out + i, tail, Kernel::convert(_mm512_maskz_loadu_ps(tail, in + i)));
}

}  // namespace

void widen_bf16(const uint16_t* in, float* out, size_t n) { widen<WidenBf16>(in, out, n); }
void widen_f16(const uint16_t* in, float* out, size_t n) { widen<WidenF16>(in, out, n); }
void narrow_bf16(const float* in, uint16_t* out, size_t n) { narrow<NarrowBf16>(in, out, n); }
void narrow_f16(const float* in, uint16_t* out, size_t n) { narrow<NarrowF16>(in, out, n); }

}  // namespace kvcodec::half_kernels::avx512
