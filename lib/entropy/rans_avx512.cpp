#include <immintrin.h>

#include "lib/entropy/rans_kernels.hpp"

namespace kvcodec::rans_kernels::avx512 {
namespace {

// Vectors of 256 bits, one for each segment: gathers of 16 are no faster per element, and their many steps
// fill the processor's window, so that less of the other segments is seen. What AVX-512 brings are masks and
// the expansion of words to the lanes that take them.

/// Into zeros, for the sake of speed: a gather keeps the elements of its destination that the mask leaves
/// out, and so waits for whatever was in that register before. The compiler must not see that the mask leaves
/// out none, or it saves the zeros.
template <int kScale>
__m256i gather(const int* base, __m256i indices) {
  __m256i all = _mm256_set1_epi32(-1);
  asm("" : "+x"(all));
  return _mm256_mask_i32gather_epi32(_mm256_setzero_si256(), base, indices, all, kScale);
}

/// The table's lookups: gives the states' symbols, one per 32 bits, and what they become without new words.
struct Narrow {
  explicit Narrow(const DecodeTable& table) : entries(reinterpret_cast<const int*>(table.narrow)) {}

  __m256i decode(__m256i& states, __m256i slots, __m128i scale) const {
    const __m256i entry = gather<4>(entries, slots);
    const __m256i offset = _mm256_and_si256(_mm256_srli_epi32(entry, 8), _mm256_set1_epi32(0xfff));
    const __m256i frequency = _mm256_srli_epi32(entry, 20);
    states = _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srl_epi32(states, scale)), offset);
    return entry;
  }

  const int* entries;
};

struct Wide {
  explicit Wide(const DecodeTable& table)
      : symbols(reinterpret_cast<const int*>(table.symbols)),
        ranges(reinterpret_cast<const int*>(table.ranges)) {}

  __m256i decode(__m256i& states, __m256i slots, __m128i scale) const {
    const __m256i low = _mm256_set1_epi32(0xffff);
    const __m256i symbol = _mm256_and_si256(gather<2>(symbols, slots), low);
    const __m256i range = gather<4>(ranges, symbol);
    const __m256i offset = _mm256_sub_epi32(slots, _mm256_srli_epi32(range, 16));
    const __m256i frequency = _mm256_and_si256(range, low);
    states = _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srl_epi32(states, scale)), offset);
    return symbol;
  }

  const int* symbols;
  const int* ranges;
};

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
}  // namespace kvcodec::rans_kernels::avx512

#define KVCODEC_RANS_LEVEL avx512
#include "lib/entropy/rans_loops.hpp"
