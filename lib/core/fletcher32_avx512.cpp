#include <immintrin.h>

#include "lib/core/fletcher32_kernels.hpp"

namespace kvcodec::fletcher_kernels::avx512 {

Sums sums(const unsigned char* bytes, size_t n) {
  constexpr size_t kWords = 32;    // per vector
  constexpr size_t kRounds = 256;  // a lane's weighted sum stays below 256 * 257 / 2 * 65535 < 2^32
  Sums total{0, 0};
  const __m512i low = _mm512_set1_epi32(0xffff);
  while (n >= kWords) {
    const size_t rounds = n / kWords < kRounds ? n / kWords : kRounds;
    __m512i even = _mm512_setzero_si512(), odd = even, even_weighted = even, odd_weighted = even;
    for (size_t r = 0; r < rounds; ++r) {
      const __m512i words = _mm512_loadu_si512(bytes + 2 * kWords * r);
      even = _mm512_add_epi32(even, _mm512_and_si512(words, low));
      odd = _mm512_add_epi32(odd, _mm512_srli_epi32(words, 16));
      even_weighted = _mm512_add_epi32(even_weighted, even);
      odd_weighted = _mm512_add_epi32(odd_weighted, odd);
    }
    uint32_t lanes[4][16];
    _mm512_storeu_si512(lanes[0], even);
    _mm512_storeu_si512(lanes[1], odd);
    _mm512_storeu_si512(lanes[2], even_weighted);
    _mm512_storeu_si512(lanes[3], odd_weighted);
    // Word j of round r has weight (rounds - r) * kWords - j among the words of these rounds.
    uint64_t plain = 0, weighted = 0;
    for (size_t j = 0; j < 16; ++j) {
      plain += uint64_t{lanes[0][j]} + lanes[1][j];
      weighted +=
          kWords * (uint64_t{lanes[2][j]} + lanes[3][j]) - 2 * j * lanes[0][j] - (2 * j + 1) * lanes[1][j];
    }
    total.weighted += total.plain * (rounds * kWords) + weighted;
    total.plain += plain;
    bytes += 2 * kWords * rounds;
    n -= kWords * rounds;
  }
  for (size_t i = 0; i < n; ++i) {
    total.plain += static_cast<uint64_t>(bytes[2 * i] | bytes[2 * i + 1] << 8);
    total.weighted += total.plain;
  }
  return total;
}

}  // namespace kvcodec::fletcher_kernels::avx512
