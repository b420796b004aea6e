// The products of products_kernels.hpp in vectors (see lib/core/cpu.hpp). Sums are fused, and have as many
// lanes as a vector, for speed; so results differ between instruction sets by rounding (products.hpp).
#pragma once

#include "lib/core/vectors.hpp"
#include "lib/kvcomp/products_kernels.hpp"

namespace kvcodec::products_kernels {
namespace {

using namespace vectors;

KVCODEC_INLINE __m128i load_symbols(const uint8_t* from) {
  return KVCODEC_BY_WIDTH(_mm_loadl_epi64, _mm_loadu_si128)((const __m128i*)from);
}

/// kWidth symbols minus 127, which fit signed bytes.
KVCODEC_INLINE Floats values_of(__m128i symbols) {
  const __m128i values = _mm_sub_epi8(symbols, _mm_set1_epi8(127));
  return as_floats((Ints)KVCODEC_BY_WIDTH(_mm256_cvtepi8_epi32, _mm512_cvtepi8_epi32)(values));
}

/// Products of all rows with the next kCount vectors, whose sums stay in registers.
template <size_t kCount>
void multiply_some(Factors& f) {
  for (size_t r = 0; r < f.rows; ++r) {
    const uint8_t* row = f.symbols + r * f.stride;
    Floats sums[kCount] = {};
    size_t i = 0;
    for (; i + kWidth <= f.n; i += kWidth) {
      const Floats values = values_of(load_symbols(row + i));
      for (size_t g = 0; g < kCount; ++g)
        sums[g] = fused(values, load(f.vectors + g * f.vector_stride + i), sums[g]);
    }
#ifdef __AVX512F__
    if (i < f.n) {
      const Floats values = values_of(_mm_maskz_loadu_epi8(first_lanes(f.n - i), row + i));
      for (size_t g = 0; g < kCount; ++g)
        sums[g] = fused(values, load_first(f.vectors + g * f.vector_stride + i, f.n - i), sums[g]);
    }
    for (size_t g = 0; g < kCount; ++g) f.out[g * f.out_stride + r] += sum_of(sums[g]);
#else
    float rest[kCount] = {};
    for (; i < f.n; ++i)
      for (size_t g = 0; g < kCount; ++g)
        rest[g] += (float)(row[i] - 127) * f.vectors[g * f.vector_stride + i];
    for (size_t g = 0; g < kCount; ++g) f.out[g * f.out_stride + r] += sum_of(sums[g]) + rest[g];
#endif
  }
  f.count -= kCount;
  f.vectors += kCount * f.vector_stride;
  f.out += kCount * f.out_stride;
}

}  // namespace

void KVCODEC_LEVEL::multiply(Factors factors) {
  while (factors.count >= 4) multiply_some<4>(factors);
  if (factors.count == 3) multiply_some<3>(factors);
  if (factors.count == 2) multiply_some<2>(factors);
  if (factors.count == 1) multiply_some<1>(factors);
}

}  // namespace kvcodec::products_kernels
