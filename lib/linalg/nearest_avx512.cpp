#include "lib/linalg/nearest_screens.hpp"

namespace kvcodec::nearest_kernels::avx512 {
namespace {

float to_bytes(const float* row, const float* center, size_t padded, int8_t* out, int32_t* sum,
               float* moments) {
  __m512 largest = _mm512_setzero_ps(), energy = largest, with_center = largest;
  for (size_t j = 0; j < padded; j += kLanes) {
    const __m512 value = _mm512_loadu_ps(row + j), middle = _mm512_loadu_ps(center + j);
    energy = _mm512_fmadd_ps(value, value, energy);
    with_center = _mm512_fmadd_ps(value, middle, with_center);
    largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_sub_ps(value, middle)));
  }
  const float peak = _mm512_reduce_max_ps(largest);
  const bool is_zero = peak < kMinPeak;
  const float scale = is_zero ? 0 : peak / 127;
  const __m512 inverse = _mm512_set1_ps(is_zero ? 0 : 127 / peak), unit = _mm512_set1_ps(scale);
  const __m512i bound = _mm512_set1_epi32(127), least = _mm512_set1_epi32(-127);
  __m512i total = _mm512_setzero_si512();
  __m512 squares = _mm512_setzero_ps(), rounding = squares;
  for (size_t j = 0; j < padded; j += kLanes) {
    const __m512 centered = _mm512_sub_ps(_mm512_loadu_ps(row + j), _mm512_loadu_ps(center + j));
    const __m512i word = _mm512_max_epi32(
        _mm512_min_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(centered, inverse)), bound), least);
    const __m512 restored = _mm512_mul_ps(_mm512_cvtepi32_ps(word), unit);
    const __m512 difference = _mm512_sub_ps(centered, restored);
    squares = _mm512_fmadd_ps(restored, restored, squares);
    rounding = _mm512_fmadd_ps(difference, difference, rounding);
    total = _mm512_add_epi32(total, word);
    _mm_storeu_si128((__m128i*)(out + j), _mm512_cvtepi32_epi8(word));
  }
  *sum = _mm512_reduce_add_epi32(total);
  moments[0] = _mm512_reduce_add_ps(squares);
  moments[1] = _mm512_reduce_add_ps(rounding);
  moments[2] = _mm512_reduce_add_ps(energy);
  moments[3] = _mm512_reduce_add_ps(with_center);
  return scale;
}

float nth_highest(const float* best, size_t n) {
  constexpr size_t kVectors = kTile / kLanes;
  const __m512 none = _mm512_set1_ps(-__builtin_inff());
  __m512 values[kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    const __m512 value = _mm512_loadu_ps(best + v * kLanes);
    values[v] = _mm512_mask_mov_ps(none, _mm512_cmp_ps_mask(value, value, _CMP_ORD_Q), value);
  }
  float highest = 0;
  for (size_t i = 0; i <= n; ++i) {
    const __m512 pairs =
        _mm512_max_ps(_mm512_max_ps(values[0], values[1]), _mm512_max_ps(values[2], values[3]));
    highest = _mm512_reduce_max_ps(pairs);
    const __m512 all = _mm512_set1_ps(highest);
    for (size_t v = 0; v < kVectors; ++v)
      values[v] = _mm512_mask_mov_ps(values[v], _mm512_cmp_ps_mask(values[v], all, _CMP_EQ_OQ), none);
  }
  return highest;
}

/// Has no branch for each vector: a processor cannot predict which of them have a value to keep.
size_t not_below(const RoughScores& rough, float limit, uint32_t first_id, uint32_t* ids, float* kept) {
  const auto [scores, margins, error, n] = rough;
  constexpr size_t kVectors = 4;  // tested together; with many entries, few of them have a value to keep
  const __m512 least = _mm512_set1_ps(limit), all_error = _mm512_set1_ps(error);
  const __m512i step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  size_t found = 0;
  for (size_t i = 0; i < n; i += kVectors * kLanes) {
    __m512 values[kVectors];
    __mmask16 masks[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      const size_t at = i + v * kLanes;
      values[v] = _mm512_fmadd_ps(all_error, _mm512_loadu_ps(margins + at), _mm512_loadu_ps(scores + at));
      masks[v] = _mm512_cmp_ps_mask(values[v], least, _CMP_NLT_UQ);
    }
    if (((masks[0] | masks[1]) | (masks[2] | masks[3])) == 0) continue;
    for (size_t v = 0; v < kVectors; ++v) {
      const __m512i id = _mm512_add_epi32(_mm512_set1_epi32((int)(first_id + i + v * kLanes)), step);
      _mm512_storeu_si512(ids + found, _mm512_maskz_compress_epi32(masks[v], id));
      _mm512_storeu_ps(kept + found, _mm512_maskz_compress_ps(masks[v], values[v]));
      found += (size_t)_mm_popcnt_u32(masks[v]);
    }
  }
  return found;
}

bool rank(const float* values, size_t n, uint32_t* order) {
  constexpr size_t kVectors = kMaxRanked / kLanes;
  const __m512 none = _mm512_set1_ps(-__builtin_inff());
  const size_t vectors = (n + kLanes - 1) / kLanes;
  __m512 all[kVectors];
  uint64_t above_none = 0;
  for (size_t v = 0; v < vectors; ++v) {
    const size_t left = n - v * kLanes;
    const __mmask16 there = left >= kLanes ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
    all[v] = _mm512_mask_loadu_ps(none, there, values + v * kLanes);
    above_none += (uint64_t)_mm_popcnt_u32(_mm512_cmp_ps_mask(all[v], none, _CMP_GT_OQ));
  }
  if (above_none != n) return false;
  for (size_t i = 0; i < n; ++i) {
    const __m512 own = _mm512_set1_ps(values[i]);
    uint64_t higher = 0, equal = 0;
    for (size_t v = 0; v < vectors; ++v) {
      higher |= (uint64_t)_mm512_cmp_ps_mask(all[v], own, _CMP_GT_OQ) << (v * kLanes);
      equal |= (uint64_t)_mm512_cmp_ps_mask(all[v], own, _CMP_EQ_OQ) << (v * kLanes);
    }
    const uint64_t before = higher | (equal & (((uint64_t)1 << i) - 1));
    order[_mm_popcnt_u64(before)] = (uint32_t)i;
  }
  return true;
}

}  // namespace

const Table& table() {
  static constexpr Table kTable = {exact,    screen_floats_by<4>, nullptr,
                                   highest,  highest_of_classes,  nth_highest,
                                   to_bytes, not_below,           rank};
  return kTable;
}

}  // namespace kvcodec::nearest_kernels::avx512
