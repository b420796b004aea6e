#include <immintrin.h>
#include <string.h>

#include "lib/core/half_kernels.hpp"

namespace kvcodec::half_kernels::avx2 {
namespace {

constexpr size_t kLanes = 8;

struct WidenBf16 {
  static __m256 convert(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
};

struct WidenF16 {
  static __m256 convert(__m128i halves) { return _mm256_cvtph_ps(halves); }
};

struct NarrowBf16 {
  static __m128i convert(__m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    // packus works on the two 128-bit halves apart: the results lie in quarters 0 and 2.
    const __m256i packed = _mm256_packus_epi32(high, high);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000));
  }
};

struct NarrowF16 {
  static __m128i convert(__m256 values) {
    return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

template <class Kernel>
void widen(const uint16_t* in, float* out, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    _mm256_storeu_ps(out + i, Kernel::convert(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  if (i == n) return;
  uint16_t tail[kLanes] = {};
  float widened[kLanes];
  memcpy(tail, in + i, (n - i) * sizeof(uint16_t));
  _mm256_storeu_ps(widened, Kernel::convert(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tail))));
  memcpy(out + i, widened, (n - i) * sizeof(float));
}

template <class Kernel>
void narrow(const float* in, uint16_t* out, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), Kernel::convert(_mm256_loadu_ps(in + i)));
  if (i == n) return;
  float tail[kLanes] = {};
  uint16_t narrowed[kLanes];
  memcpy(tail, in + i, (n - i) * sizeof(float));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(narrowed), Kernel::convert(_mm256_loadu_ps(tail)));
  memcpy(out + i, narrowed, (n - i) * sizeof(uint16_t));
}

}  // namespace

void widen_bf16(const uint16_t* in, float* out, size_t n) { widen<WidenBf16>(in, out, n); }
void widen_f16(const uint16_t* in, float* out, size_t n) { widen<WidenF16>(in, out, n); }
void narrow_bf16(const float* in, uint16_t* out, size_t n) { narrow<NarrowBf16>(in, out, n); }
void narrow_f16(const float* in, uint16_t* out, size_t n) { narrow<NarrowF16>(in, out, n); }

}  // namespace kvcodec::half_kernels::avx2
