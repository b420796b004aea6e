// The products of products_kernels.hpp in vectors (see lib/core/cpu.hpp). Sums are fused, and have as many
// lanes as a vector: the fastest, so that results differ between levels by rounding (products.hpp).
#pragma once

#include "lib/core/vectors.hpp"
#include "lib/kvcomp/products_kernels.hpp"

namespace kvcodec::products_kernels {
namespace {

using namespace vectors;

KVCODEC_INLINE __m128i load_symbols(const uint8_t* from) {
  return KVCODEC_BY_WIDTH(_mm_loadl_epi64, _mm_loadu_si128)((const __m128i*)from);
}

/// kWidth symbols less 127, which fit signed bytes.
KVCODEC_INLINE Floats values_of(__m128i symbols) {
  const __m128i values = _mm_sub_epi8(symbols, _mm_set1_epi8(127));
  return as_floats((Ints)KVCODEC_BY_WIDTH(_mm256_cvtepi8_epi32, _mm512_cvtepi8_epi32)(values));
}

/// Rows with kCount vectors, whose sums stay in registers.
template <size_t kCount>
void rows_times(const uint8_t* symbols, size_t stride, size_t rows, size_t n, const float* vectors,
                size_t vector_stride, float* out, size_t out_stride) {
  for (size_t r = 0; r < rows; ++r) {
    const uint8_t* row = symbols + r * stride;
    Floats sums[kCount] = {};
    size_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      const Floats values = values_of(load_symbols(row + i));
      for (size_t g = 0; g < kCount; ++g)
        sums[g] = fused(values, load(vectors + g * vector_stride + i), sums[g]);
    }
#ifdef __AVX512F__
    if (i < n) {
      const Floats values = values_of(_mm_maskz_loadu_epi8(first_lanes(n - i), row + i));
      for (size_t g = 0; g < kCount; ++g)
        sums[g] = fused(values, load_first(vectors + g * vector_stride + i, n - i), sums[g]);
    }
    for (size_t g = 0; g < kCount; ++g) out[g * out_stride + r] += sum_of(sums[g]);
#else
    float rest[kCount] = {};
    for (; i < n; ++i)
      for (size_t g = 0; g < kCount; ++g) rest[g] += (float)(row[i] - 127) * vectors[g * vector_stride + i];
    for (size_t g = 0; g < kCount; ++g) out[g * out_stride + r] += sum_of(sums[g]) + rest[g];
#endif
  }
}

KVCODEC_INLINE void wide_multiply(const uint8_t* symbols, size_t stride, size_t rows, size_t n,
                                  const float* vectors, size_t vector_stride, size_t count, float* out,
                                  size_t out_stride) {
  for (; count >= 4; count -= 4, vectors += 4 * vector_stride, out += 4 * out_stride)
    rows_times<4>(symbols, stride, rows, n, vectors, vector_stride, out, out_stride);
  if (count == 3) rows_times<3>(symbols, stride, rows, n, vectors, vector_stride, out, out_stride);
  if (count == 2) rows_times<2>(symbols, stride, rows, n, vectors, vector_stride, out, out_stride);
  if (count == 1) rows_times<1>(symbols, stride, rows, n, vectors, vector_stride, out, out_stride);
}

}  // namespace
}  // namespace kvcodec::products_kernels
