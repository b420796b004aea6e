#include <immintrin.h>

#include "lib/selfindex/sign_kernels_body.hpp"

namespace kvcodec::sign_kernels::avx512 {
namespace {

void encode(const float* values, size_t n, uint8_t* codes) {
  // Lane i of the mask is bit i; the first of 8 values must be the highest bit of its byte.
  const __m512i backwards = _mm512_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 turned = _mm512_permutexvar_ps(backwards, _mm512_loadu_ps(values + i));
    const __mmask16 mask = _mm512_cmp_ps_mask(turned, _mm512_setzero_ps(), _CMP_GE_OQ);
    memcpy(codes + i / 8, &mask, sizeof(mask));
  }
  for (; i < n; i += 8) codes[i / 8] = encode_tail(values + i, n - i < 8 ? n - i : 8);
}

}  // namespace

const Table& table() {
  static constexpr Table kTable = {encode, add, products, to_bytes};
  return kTable;
}

}  // namespace kvcodec::sign_kernels::avx512
