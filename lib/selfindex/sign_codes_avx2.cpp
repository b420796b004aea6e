#include <immintrin.h>

#include "lib/selfindex/sign_kernels_body.hpp"

namespace kvcodec::sign_kernels::avx2 {
namespace {

void encode(const float* values, size_t n, uint8_t* codes) {
  // The first value's sign must be the highest bit: lanes are turned round before they become a mask.
  const __m256i backwards = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 turned = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values + i), backwards);
    codes[i / 8] = (uint8_t)_mm256_movemask_ps(_mm256_cmp_ps(turned, _mm256_setzero_ps(), _CMP_GE_OQ));
  }
  if (i < n) codes[i / 8] = encode_tail(values + i, n - i);
}

}  // namespace

const Table& table() {
  static constexpr Table kTable = {encode, add, products, to_bytes};
  return kTable;
}

}  // namespace kvcodec::sign_kernels::avx2
