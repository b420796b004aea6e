#include <immintrin.h>

#include "lib/entropy/rans_kernels.hpp"

namespace kvcodec::rans_kernels {
namespace {

// Vectors of 256 bits, one for each segment: gathers of 16 are no faster per element, and their many steps
// fill the processor's window, so that less of the other segments is seen. What AVX-512 brings are masks and
// the expansion of words to the lanes that take them.

void store(__m256i symbols, uint8_t* out) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm256_cvtepi32_epi8(symbols));
}
void store(__m256i symbols, uint16_t* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_cvtepi32_epi16(symbols));
}

/// States below 2^16 take the next words, in lane order.
__m256i take_words(__m256i states, const uint8_t*& words) {
  const __mmask8 is_low = _mm256_cmplt_epu32_mask(states, _mm256_set1_epi32(kLowestState));
  const __m256i next = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
  words += 2 * static_cast<size_t>(__builtin_popcount(is_low));
  return _mm256_or_si256(_mm256_mask_slli_epi32(states, is_low, states, 16),
                         _mm256_maskz_expand_epi32(is_low, next));
}

}  // namespace
}  // namespace kvcodec::rans_kernels

#include "lib/entropy/rans_kernels_body.hpp"

namespace kvcodec::rans_kernels {

template <class Symbol>
void avx512::decode(const DecodeTable& table, Segment<Symbol>* segments, size_t count, size_t groups) {
  decode_segments(table, segments, count, groups);
}
template void avx512::decode(const DecodeTable&, Segment<uint8_t>*, size_t, size_t);
template void avx512::decode(const DecodeTable&, Segment<uint16_t>*, size_t, size_t);

}  // namespace kvcodec::rans_kernels
