#include <immintrin.h>
#include <string.h>

#include "lib/sparse/combine_kernels.hpp"

namespace kvcodec::combine_kernels::avx2 {
namespace {

/// Rounded to nearest, ties to even; no sum is NaN.
inline __m128i to_bf16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

/// All 64 channels, the whole line, of one code.
inline void sums_of(const uint8_t* slice, const Code& code, int32_t* sums) {
  // Eight sums of eight channels do not fit beside what they are made of, so half a line goes at a time.
  for (size_t half = 0; half < 2; ++half) {
    __m256i low[2], high[2];  // by 128-bit lanes of a line: words 0 to 3, and 4 to 7, of each half lane
    for (size_t i = 0; i < 2; ++i) low[i] = high[i] = _mm256_setzero_si256();
    for (size_t k = 0; k < size_t{code.quads} * 4; k += 2) {
      int two;
      memcpy(&two, code.weights + 2 * k, sizeof two);
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
      // Bytes 0-3, 4-7, 8-11, 12-15 of lane l of the line are channels 4 l + 0, 16, 32, 48 and the next
      // three.
      const size_t lane = 2 * half + i;
      const __m128i groups[4] = {_mm256_castsi256_si128(low[i]), _mm256_castsi256_si128(high[i]),
                                 _mm256_extracti128_si256(low[i], 1), _mm256_extracti128_si256(high[i], 1)};
      for (size_t b = 0; b < 4; ++b)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + 16 * b + 4 * lane), groups[b]);
    }
  }
}

/// The weights of eight pairs, those behind the last 0.
inline __m256 weights_of(const uint32_t* ids, const float* coefficients, size_t left, const float* scales,
                         __m256i* atoms) {
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(left < 8 ? static_cast<int>(left) : 8),
                                          _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  *atoms = _mm256_maskload_epi32(reinterpret_cast<const int*>(ids), mask);
  const __m256 scale =
      _mm256_mask_i32gather_ps(_mm256_setzero_ps(), scales, *atoms, _mm256_castsi256_ps(mask), sizeof(float));
  return _mm256_mul_ps(_mm256_maskload_ps(coefficients, mask), scale);
}

void prepare(const uint32_t* ids, const float* coefficients, size_t pairs, const float* scales,
             uint32_t* lines, uint8_t* weights, Code* code) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 peaks = _mm256_setzero_ps();
  __m256i atoms;
  for (size_t k = 0; k < pairs; k += 8)
    peaks = _mm256_max_ps(
        peaks, _mm256_and_ps(weights_of(ids + k, coefficients + k, pairs - k, scales, &atoms), magnitude));
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, peaks);
  float largest = 0;
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  const auto most = static_cast<float>(kLargestWeight);
  const bool any = largest >= kLeastWeight;
  const __m256 factor = _mm256_set1_ps(any ? most / largest : 0);
  __m256i sums = _mm256_setzero_si256();
  for (size_t k = 0; k < pairs; k += 8) {
    const __m256i q = _mm256_cvtps_epi32(
        _mm256_mul_ps(weights_of(ids + k, coefficients + k, pairs - k, scales, &atoms), factor));
    sums = _mm256_add_epi32(sums, q);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(weights + 2 * k),
                     _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1)));
    static_assert(kSliceChannels == 64);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lines + k), _mm256_slli_epi32(atoms, 6));
  }
  alignas(32) int32_t parts[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts), sums);
  int32_t sum = 0;
  for (const int32_t part : parts) sum += part;
  code->unit = any ? largest / most : 0;
  code->correction = -kLevelOffset * sum;
}

void combine(const uint8_t* slice, const Code* codes, size_t signals, size_t width, const Finish& finish,
             void* out, size_t stride) {
  alignas(32) float scales[kSliceChannels] = {}, means[kSliceChannels] = {};
  if (finish.scale) memcpy(scales, finish.scale, width * sizeof(float));
  if (finish.mean) memcpy(means, finish.mean, width * sizeof(float));
  const size_t element = finish.type == Output::f32 ? sizeof(float) : sizeof(uint16_t);
  for (size_t i = 0; i < signals; ++i) {
    const Code& code = codes[i];
    alignas(32) int32_t sums[kSliceChannels];
    sums_of(slice, code, sums);
    alignas(32) char results[kSliceChannels * sizeof(float)];
    for (size_t c = 0; c < width; c += 8) {
      const __m256i sum = _mm256_add_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(sums + c)),
                                           _mm256_set1_epi32(code.correction));
      __m256 values = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(code.unit));
      if (finish.gain) values = _mm256_mul_ps(values, _mm256_set1_ps(code.gain));
      if (finish.scale) values = _mm256_mul_ps(values, _mm256_load_ps(scales + c));
      if (finish.mean) values = _mm256_add_ps(values, _mm256_load_ps(means + c));
      if (finish.type == Output::f32)
        _mm256_store_ps(reinterpret_cast<float*>(results) + c, values);
      else
        _mm_store_si128(reinterpret_cast<__m128i*>(results + 2 * c),
                        finish.type == Output::bf16
                            ? to_bf16(values)
                            : _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    memcpy(static_cast<char*>(out) + i * stride * element, results, width * element);
  }
}

}  // namespace

const Kernels& table() {
  static constexpr Kernels kTable = {.prepare = prepare, .combine = combine};
  return kTable;
}

}  // namespace kvcodec::combine_kernels::avx2
