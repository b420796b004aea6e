#include <immintrin.h>

#include "lib/entropy/rans_kernels.hpp"

namespace kvcodec::rans_kernels {
namespace {

/// For every set of lanes that take a word: which of the next words each takes.
struct WordOfLane {
  uint8_t of[256][kLanes] = {};
  constexpr WordOfLane() {
    for (size_t set = 0; set < 256; ++set) {
      uint8_t next = 0;
      for (size_t lane = 0; lane < kLanes; ++lane)
        if (set >> lane & 1) of[set][lane] = next++;
    }
  }
};
constexpr WordOfLane kWordOfLane;

void store(__m256i symbols, uint8_t* out) {
  const __m256i first_bytes =
      _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                       0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i gathered = _mm256_shuffle_epi8(symbols, first_bytes);
  const __m128i both =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(gathered), _mm256_extracti128_si256(gathered, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), both);
}

void store(__m256i symbols, uint16_t* out) {  // all below 65536
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(symbols, symbols), 0b1000);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(packed));
}

/// States below 2^16 take the next words, in lane order.
__m256i take_words(__m256i states, const uint8_t*& words) {
  const __m256i is_low = _mm256_cmpeq_epi32(_mm256_srli_epi32(states, 16), _mm256_setzero_si256());
  const auto set = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(is_low)));
  const __m256i next = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
  const __m256i order =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kWordOfLane.of[set])));
  const __m256i refilled =
      _mm256_or_si256(_mm256_slli_epi32(states, 16), _mm256_permutevar8x32_epi32(next, order));
  words += 2 * static_cast<size_t>(__builtin_popcount(set));
  return _mm256_blendv_epi8(states, refilled, is_low);
}

}  // namespace
}  // namespace kvcodec::rans_kernels

#include "lib/entropy/rans_kernels_body.hpp"

namespace kvcodec::rans_kernels {

template <class Symbol>
void avx2::decode(const DecodeTable& table, Segment<Symbol>* segments, size_t count, size_t groups) {
  decode_segments(table, segments, count, groups);
}
template void avx2::decode(const DecodeTable&, Segment<uint8_t>*, size_t, size_t);
template void avx2::decode(const DecodeTable&, Segment<uint16_t>*, size_t, size_t);

}  // namespace kvcodec::rans_kernels
