#include <immintrin.h>

#include "lib/kvcomp/products_kernels.hpp"

namespace kvcodec::products_kernels::avx2 {
namespace {

constexpr size_t kWidth = 8;

inline __m256 widen(__m128i symbols, __m128i zero_symbol) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(symbols, zero_symbol)));
}

inline float sum_of(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/// One row with `count` (a constant after inlining) vectors.
template <size_t count>
inline void row_times(const uint8_t* row, size_t n, const float* vectors, size_t vector_stride, float* out,
                      size_t out_stride) {
  const __m128i zero_symbol = _mm_set1_epi8(127);
  __m256 sums[count];
  for (size_t g = 0; g < count; ++g) sums[g] = _mm256_setzero_ps();
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const __m256 values = widen(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + i)), zero_symbol);
    for (size_t g = 0; g < count; ++g)
      sums[g] = _mm256_fmadd_ps(values, _mm256_loadu_ps(vectors + g * vector_stride + i), sums[g]);
  }
  float tails[count] = {};
  for (; i < n; ++i) {
    const auto value = static_cast<float>(static_cast<int8_t>(static_cast<uint8_t>(row[i] - 127)));
    for (size_t g = 0; g < count; ++g) tails[g] += value * vectors[g * vector_stride + i];
  }
  for (size_t g = 0; g < count; ++g) out[g * out_stride] += sum_of(sums[g]) + tails[g];
}

}  // namespace
}  // namespace kvcodec::products_kernels::avx2

#define KVCODEC_PRODUCTS_LEVEL avx2
#include "lib/kvcomp/products_loops.hpp"
