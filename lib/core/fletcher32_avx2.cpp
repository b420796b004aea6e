#include <immintrin.h>

#include "lib/core/fletcher32_kernels.hpp"

namespace kvcodec::fletcher_kernels::avx2 {

Sums sums(const unsigned char* bytes, size_t n) {
  constexpr size_t kWords = 16;    // per vector
  constexpr size_t kRounds = 256;  // a lane's weighted sum stays below 256 * 257 / 2 * 65535 < 2^32
  Sums total{0, 0};
  const __m256i low = _mm256_set1_epi32(0xffff);
  while (n >= kWords) {
    const size_t rounds = n / kWords < kRounds ? n / kWords : kRounds;
    __m256i even = _mm256_setzero_si256(), odd = even, even_weighted = even, odd_weighted = even;
    for (size_t r = 0; r < rounds; ++r) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 2 * kWords * r));
      even = _mm256_add_epi32(even, _mm256_and_si256(words, low));
      odd = _mm256_add_epi32(odd, _mm256_srli_epi32(words, 16));
      even_weighted = _mm256_add_epi32(even_weighted, even);
      odd_weighted = _mm256_add_epi32(odd_weighted, odd);
    }
    uint32_t lanes[4][8];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes[0]), even);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes[1]), odd);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes[2]), even_weighted);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes[3]), odd_weighted);
    // Word j of round r has weight (rounds - r) * kWords - j among the words of these rounds.
    uint64_t plain = 0, weighted = 0;
    for (size_t j = 0; j < 8; ++j) {
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

}  // namespace kvcodec::fletcher_kernels::avx2
