#include <immintrin.h>

#include "lib/kvcomp/products_kernels.hpp"

namespace kvcodec::products_kernels::avx512 {
namespace {

constexpr size_t kWidth = 16;

inline __m512 widen(__m128i symbols, __m128i zero_symbol) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_sub_epi8(symbols, zero_symbol)));
}

/// One row with `count` (a constant after inlining) vectors.
template <size_t count>
inline void row_times(const uint8_t* row, size_t n, const float* vectors, size_t vector_stride, float* out,
                      size_t out_stride) {
  const __m128i zero_symbol = _mm_set1_epi8(127);
  __m512 sums[count];
  for (size_t g = 0; g < count; ++g) sums[g] = _mm512_setzero_ps();
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const __m512 values = widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i)), zero_symbol);
    for (size_t g = 0; g < count; ++g)
      sums[g] = _mm512_fmadd_ps(values, _mm512_loadu_ps(vectors + g * vector_stride + i), sums[g]);
  }
  if (i < n) {
    const auto mask = static_cast<__mmask16>((1u << (n - i)) - 1);
    const __m512 values = widen(_mm_maskz_loadu_epi8(mask, row + i), zero_symbol);
    for (size_t g = 0; g < count; ++g)
      sums[g] =
          _mm512_fmadd_ps(values, _mm512_maskz_loadu_ps(mask, vectors + g * vector_stride + i), sums[g]);
  }
  for (size_t g = 0; g < count; ++g) out[g * out_stride] += _mm512_reduce_add_ps(sums[g]);
}

}  // namespace
}  // namespace kvcodec::products_kernels::avx512

#define KVCODEC_PRODUCTS_LEVEL avx512
#include "lib/kvcomp/products_loops.hpp"
