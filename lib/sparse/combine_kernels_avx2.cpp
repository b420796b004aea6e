#include <immintrin.h>
#include <string.h>

#include "lib/sparse/combine_kernels.hpp"

namespace kvcodec::combine_kernels::avx2 {
namespace {

/// All 64 channels, the whole line, of one code.
inline void sums_of(const uint8_t* slice, const Code& code, int32_t* sums) {
  // Eight sums of eight channels do not fit beside what they are made of, so half a line goes at a time.
  for (size_t half = 0; half < 2; ++half) {
    __m256i low[2], high[2];  // by 128-bit lanes of a line: words 0 to 3, and 4 to 7, of each half lane
    for (size_t i = 0; i < 2; ++i) low[i] = high[i] = _mm256_setzero_si256();
    for (size_t k = 0; k < code.pairs; k += 2) {
      int two;
      memcpy(&two, code.weights + k, sizeof two);
      const __m256i weights = _mm256_set1_epi32(two);
      const uint8_t *first = slice + code.lines[k] + 32 * half,
                    *second = slice + code.lines[k + 1] + 32 * half;
      for (size_t i = 0; i < 2; ++i) {
        const __m256i a =
            _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first + 16 * i)));
        const __m256i b =
            _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(second + 16 * i)));
        low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weights));
        high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weights));
      }
    }
    for (size_t i = 0; i < 2; ++i) {
      // Bytes 0-3, 4-7, 8-11, 12-15 of lane l of the line are channels 4 l + 0, 16, 32, 48 and the next three.
      const size_t lane = 2 * half + i;
      const __m128i groups[4] = {_mm256_castsi256_si128(low[i]), _mm256_castsi256_si128(high[i]),
                                 _mm256_extracti128_si256(low[i], 1), _mm256_extracti128_si256(high[i], 1)};
      for (size_t b = 0; b < 4; ++b)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + 16 * b + 4 * lane), groups[b]);
    }
  }
}

}  // namespace

void combine(const uint8_t* slice, const Code* codes, size_t signals, const Finish& finish, float* out,
             size_t stride) {
  const size_t width = finish.width;
  alignas(32) float scales[kSliceChannels] = {}, means[kSliceChannels] = {};
  if (finish.scale) memcpy(scales, finish.scale, width * sizeof(float));
  if (finish.mean) memcpy(means, finish.mean, width * sizeof(float));
  for (size_t i = 0; i < signals; ++i) {
    const Code& code = codes[i];
    alignas(32) int32_t sums[kSliceChannels];
    sums_of(slice, code, sums);
    alignas(32) float results[kSliceChannels];
    for (size_t c = 0; c < width; c += 8) {
      const __m256i sum = _mm256_add_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(sums + c)),
                                           _mm256_set1_epi32(static_cast<int>(code.correction)));
      __m256 values = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(code.unit));
      if (finish.gain) values = _mm256_mul_ps(values, _mm256_set1_ps(code.gain));
      if (finish.scale) values = _mm256_mul_ps(values, _mm256_load_ps(scales + c));
      if (finish.mean) values = _mm256_add_ps(values, _mm256_load_ps(means + c));
      _mm256_store_ps(results + c, values);
    }
    memcpy(out + i * stride, results, width * sizeof(float));
  }
}

}  // namespace kvcodec::combine_kernels::avx2
