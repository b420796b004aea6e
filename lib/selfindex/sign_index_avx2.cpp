#include <immintrin.h>

#include "lib/selfindex/sign_kernels.hpp"

namespace kvcodec::sign_kernels {
namespace {

/// The entries of a 16-entry table that the low four bits of each index choose.
[[gnu::always_inline]] inline __m256 look_up(const float* table, __m256i index) {
  const __m256 first = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
  const __m256 second = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index);
  return _mm256_blendv_ps(first, second, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

}  // namespace

void avx2::scores(const Codes& codes, const float* table, float* out) {
  for (size_t block = 0; block < codes.blocks; ++block, out += kBlock) {
    __m256 sums[4];
    for (int i = 0; i < 4; ++i) sums[i] = _mm256_setzero_ps();
    for (size_t group = 0; group < codes.groups; ++group) {
      const uint8_t* bytes = codes.bytes + (block * codes.row_bytes + group / 2) * kBlock;
      for (int i = 0; i < 4; ++i) {
        const __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(bytes + 8 * i)));
        sums[i] = _mm256_add_ps(
            sums[i], look_up(table + 16 * group, group % 2 == 0 ? _mm256_srli_epi32(both, 4) : both));
      }
    }
    for (int i = 0; i < 4; ++i) _mm256_storeu_ps(out + 8 * i, sums[i]);
  }
}

}  // namespace kvcodec::sign_kernels
