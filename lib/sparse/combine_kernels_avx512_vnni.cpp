#include <immintrin.h>
#include <string.h>

#include "lib/sparse/combine_kernels.hpp"

namespace kvcodec::combine_kernels::avx512_vnni {
namespace {

/// Rounded to nearest, ties to even; no sum is NaN.
inline __m256i to_bf16(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

inline __mmask16 mask_of(size_t width, size_t vector) {
  if (width >= 16 * (vector + 1)) return 0xffff;
  return width <= 16 * vector ? 0 : static_cast<__mmask16>((1u << (width - 16 * vector)) - 1);
}

inline void store(__m512 values, __mmask16 mask, Output type, void* out, size_t at) {
  switch (type) {
    case Output::f32:
      return _mm512_mask_storeu_ps(static_cast<float*>(out) + at, mask, values);
    case Output::bf16:
      return _mm256_mask_storeu_epi16(static_cast<uint16_t*>(out) + at, mask, to_bf16(values));
    case Output::f16:
      return _mm256_mask_storeu_epi16(static_cast<uint16_t*>(out) + at, mask,
                                      _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
}

/// sums += products of four bytes each. Written out since GCC 12 copies every sum twice around the intrinsic,
/// which makes the loop as slow as it can issue instructions.
inline void add_products(__m512i& sums, __m512i levels, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(levels), "v"(weights));
}

inline __m512i four_bytes(const uint8_t* bytes) {
  int word;
  memcpy(&word, bytes, sizeof word);
  return _mm512_set1_epi32(word);
}

/// The weights of sixteen pairs, those behind the last 0.
inline __m512 weights_of(const uint32_t* ids, const float* coefficients, size_t left, const float* scales,
                         __m512i* atoms) {
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1);
  *atoms = _mm512_maskz_loadu_epi32(mask, ids);
  const __m512 scale = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, *atoms, scales, sizeof(float));
  return _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, coefficients), scale);
}

void prepare(const uint32_t* ids, const float* coefficients, size_t pairs, const float* scales,
             uint32_t* lines, uint8_t* weights, Code* code) {
  __m512 peaks = _mm512_setzero_ps();
  __m512i atoms;
  for (size_t k = 0; k < pairs; k += kPairStep)
    peaks =
        _mm512_max_ps(peaks, _mm512_abs_ps(weights_of(ids + k, coefficients + k, pairs - k, scales, &atoms)));
  const float largest = _mm512_reduce_max_ps(peaks), most = static_cast<float>(kLargestWeight);
  const bool any = largest >= kLeastWeight;
  const __m512 factor = _mm512_set1_ps(any ? most / largest : 0);
  __m512i sums = _mm512_setzero_si512();
  for (size_t k = 0; k < pairs; k += kPairStep) {
    const __m512 products =
        _mm512_mul_ps(weights_of(ids + k, coefficients + k, pairs - k, scales, &atoms), factor);
    const __m512i q = _mm512_cvtps_epi32(products);
    sums = _mm512_add_epi32(sums, q);
    // q + 128 has the high byte that belongs to a low byte between -128 and 127.
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(weights + k), _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(weights + code->room + k), _mm512_cvtepi32_epi8(q));
    static_assert(kSliceChannels == 64);
    _mm512_storeu_si512(lines + k, _mm512_slli_epi32(atoms, 6));
  }
  code->unit = any ? largest / most : 0;
  code->correction = -kLevelOffset * _mm512_reduce_add_epi32(sums);
}

void combine(const uint8_t* slice, const Code* codes, size_t signals, size_t width, const Finish& finish,
             void* out, size_t stride) {
  __mmask16 masks[4];
  __m512 scales[4], means[4];
  for (size_t v = 0; v < 4; ++v) {
    masks[v] = mask_of(width, v);
    scales[v] = finish.scale ? _mm512_maskz_loadu_ps(masks[v], finish.scale + 16 * v) : _mm512_setzero_ps();
    means[v] = finish.mean ? _mm512_maskz_loadu_ps(masks[v], finish.mean + 16 * v) : _mm512_setzero_ps();
  }
  for (size_t i = 0; i < signals; ++i) {
    const Code& code = codes[i];
    const __m512i zero = _mm512_setzero_si512();
    __m512i high0 = zero, high1 = zero, high2 = zero, high3 = zero;
    __m512i low0 = zero, low1 = zero, low2 = zero, low3 = zero;
    const uint8_t* const high_bytes = code.weights;
    const uint8_t* const low_bytes = code.weights + code.room;
    const size_t pairs = size_t{code.quads} * 4;
    for (size_t k = 0; k < pairs; k += 4) {
      const uint32_t* lines = code.lines + k;
      for (size_t j = 0; j < 4; ++j)
        _mm_prefetch(reinterpret_cast<const char*>(slice + lines[kAhead + j]), _MM_HINT_T0);
      const __m512i row0 = _mm512_load_si512(slice + lines[0]), row1 = _mm512_load_si512(slice + lines[1]),
                    row2 = _mm512_load_si512(slice + lines[2]), row3 = _mm512_load_si512(slice + lines[3]);
      const __m512i first_low = _mm512_unpacklo_epi8(row0, row1),
                    first_high = _mm512_unpackhi_epi8(row0, row1),
                    second_low = _mm512_unpacklo_epi8(row2, row3),
                    second_high = _mm512_unpackhi_epi8(row2, row3);
      const __m512i channels0 = _mm512_unpacklo_epi16(first_low, second_low),
                    channels1 = _mm512_unpackhi_epi16(first_low, second_low),
                    channels2 = _mm512_unpacklo_epi16(first_high, second_high),
                    channels3 = _mm512_unpackhi_epi16(first_high, second_high);
      const __m512i high_weights = four_bytes(high_bytes + k), low_weights = four_bytes(low_bytes + k);
      add_products(high0, channels0, high_weights);
      add_products(high1, channels1, high_weights);
      add_products(high2, channels2, high_weights);
      add_products(high3, channels3, high_weights);
      add_products(low0, channels0, low_weights);
      add_products(low1, channels1, low_weights);
      add_products(low2, channels2, low_weights);
      add_products(low3, channels3, low_weights);
    }
    const __m512i high[4] = {high0, high1, high2, high3}, low[4] = {low0, low1, low2, low3};
    const __m512i correction = _mm512_set1_epi32(code.correction);
    for (size_t v = 0; v < 4; ++v) {
      const __m512i sum =
          _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(high[v], 8), low[v]), correction);
      __m512 values = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(code.unit));
      if (finish.gain) values = _mm512_mul_ps(values, _mm512_set1_ps(code.gain));
      if (finish.scale) values = _mm512_mul_ps(values, scales[v]);
      if (finish.mean) values = _mm512_add_ps(values, means[v]);
      store(values, masks[v], finish.type, out, i * stride + 16 * v);
    }
  }
}

}  // namespace

const Kernels& table() {
  static constexpr Kernels kTable = {.prepare = prepare, .combine = combine};
  return kTable;
}

}  // namespace kvcodec::combine_kernels::avx512_vnni
