#include <immintrin.h>

#include "lib/linalg/topk_kernels_body.hpp"

namespace kvcodec::topk_kernels::avx512 {
namespace {

constexpr size_t kLanes = 16;

__mmask16 first_lanes(size_t count) {
  return count >= kLanes ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1);
}

/// Writes the lanes of the mask side by side, and rubbish behind them; returns how many they are.
size_t put(__m512i keys, __m512i ids, __mmask16 mask, int32_t* keys_out, uint32_t* ids_out) {
  _mm512_storeu_si512(keys_out, _mm512_maskz_compress_epi32(mask, keys));
  _mm512_storeu_si512(ids_out, _mm512_maskz_compress_epi32(mask, ids));
  return (size_t)_mm_popcnt_u32(mask);
}

size_t keep(int32_t* keys, uint32_t* ids, size_t n, int32_t limit) {
  const __m512i least = _mm512_set1_epi32(limit);
  size_t kept = 0;
  for (size_t i = 0; i < n; i += kLanes) {  // what is read lies at or behind what is written
    const __mmask16 valid = first_lanes(n - i);
    const __m512i key = _mm512_maskz_loadu_epi32(valid, keys + i);
    const __m512i id = _mm512_maskz_loadu_epi32(valid, ids + i);
    kept += put(key, id, _mm512_mask_cmpge_epi32_mask(valid, key, least), keys + kept, ids + kept);
  }
  return kept;
}

size_t collect(const float* scores, size_t n, uint32_t first_id, int32_t limit, int32_t* keys,
               uint32_t* ids) {
  const __m512i least = _mm512_set1_epi32(limit);
  const __m512i step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  size_t found = 0;
  for (size_t i = 0; i < n; i += kLanes) {
    const __mmask16 valid = first_lanes(n - i);
    const __m512 score = _mm512_add_ps(_mm512_maskz_loadu_ps(valid, scores + i), _mm512_setzero_ps());
    const __m512i bits = _mm512_castps_si512(score);
    const __m512i key = _mm512_xor_si512(bits, _mm512_srli_epi32(_mm512_srai_epi32(bits, 31), 1));
    const __mmask16 mask = _mm512_mask_cmpge_epi32_mask(valid, key, least);
    if (mask == 0) continue;
    const __m512i id = _mm512_add_epi32(_mm512_set1_epi32((int)(first_id + (uint32_t)i)), step);
    found += put(key, id, mask, keys + found, ids + found);
  }
  return found;
}

/// Ranks of 16 keys at a time, which stay in a register while all keys pass by.
void wide_ranks(const int32_t* keys, size_t n, uint32_t* out) {
  const __m512i one = _mm512_set1_epi32(1);
  for (size_t i = 0; i < n; i += kLanes) {
    const __mmask16 valid = first_lanes(n - i);
    const size_t end = n - i < kLanes ? n : i + kLanes;
    const __m512i own = _mm512_maskz_loadu_epi32(valid, keys + i);
    __m512i before = _mm512_setzero_si512(), after = before;
    for (size_t j = 0; j < i; ++j)
      before = _mm512_mask_add_epi32(before, _mm512_cmple_epi32_mask(own, _mm512_set1_epi32(keys[j])), before,
                                     one);
    for (size_t j = i; j < end; ++j) {  // lanes behind key j count it if it is equal, the others do not
      const __m512i key = _mm512_set1_epi32(keys[j]);
      const __mmask16 behind = (__mmask16)(0xfffeu << (j - i));
      const __mmask16 counted =
          (__mmask16)(_mm512_cmplt_epi32_mask(own, key) | (_mm512_cmpeq_epi32_mask(own, key) & behind));
      before = _mm512_mask_add_epi32(before, counted, before, one);
    }
    for (size_t j = end; j < n; ++j)
      after =
          _mm512_mask_add_epi32(after, _mm512_cmplt_epi32_mask(own, _mm512_set1_epi32(keys[j])), after, one);
    _mm512_mask_storeu_epi32(out + i, valid, _mm512_add_epi32(before, after));
  }
}

}  // namespace

const Table& table() {
  static constexpr Table kTable = {range, count, keep, collect, wide_ranks};
  return kTable;
}

}  // namespace kvcodec::topk_kernels::avx512
