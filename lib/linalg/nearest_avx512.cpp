#include <immintrin.h>
#include <stddef.h>

namespace kvcodec::nearest_kernels {
namespace {

struct Vector {
  static constexpr size_t kWidth = 16;
  __m512 lanes;
  static Vector load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Vector all(float value) { return {_mm512_set1_ps(value)}; }
  void store(float* to) const { _mm512_storeu_ps(to, lanes); }
};
Vector fused(Vector a, Vector b, Vector c) { return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
Vector larger(Vector a, Vector b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
Vector sum(Vector a, Vector b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }

}  // namespace
}  // namespace kvcodec::nearest_kernels

#include "lib/linalg/nearest_kernels_body.hpp"

namespace kvcodec::nearest_kernels::avx512 {
namespace {

/// The lanes as a tree: the upper half onto the lower half until one is left.
float sum_of(__m512 lanes) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// Entries scored side by side: the sums of one wait for each other.
constexpr size_t kAtOnce = 4;

void exact(const float* row, const float* entries, size_t padded, const uint32_t* ids, size_t count,
           float* out) {
  size_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce) {
    const float* entry[kAtOnce];
    __m512 sums[kAtOnce];
    for (size_t k = 0; k < kAtOnce; ++k) {
      entry[k] = entries + (size_t)ids[i + k] * padded;
      sums[k] = _mm512_setzero_ps();
    }
    for (size_t j = 0; j < padded; j += kLanes) {
      const __m512 value = _mm512_loadu_ps(row + j);
#pragma GCC unroll 4
      for (size_t k = 0; k < kAtOnce; ++k)
        sums[k] = _mm512_add_ps(sums[k], _mm512_mul_ps(value, _mm512_loadu_ps(entry[k] + j)));
    }
    for (size_t k = 0; k < kAtOnce; ++k) out[i + k] = sum_of(sums[k]);
  }
  for (; i < count; ++i) {
    const float* entry = entries + (size_t)ids[i] * padded;
    __m512 sum = _mm512_setzero_ps();
    for (size_t j = 0; j < padded; j += kLanes)
      sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_loadu_ps(row + j), _mm512_loadu_ps(entry + j)));
    out[i] = sum_of(sum);
  }
}

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
  const bool none = peak < kSmallestPeak;
  const float scale = none ? 0 : peak / 127;
  const __m512 inverse = _mm512_set1_ps(none ? 0 : 127 / peak), unit = _mm512_set1_ps(scale);
  const __m512i most = _mm512_set1_epi32(127), least = _mm512_set1_epi32(-127);
  __m512i total = _mm512_setzero_si512();
  __m512 squares = _mm512_setzero_ps(), rounding = squares;
  for (size_t j = 0; j < padded; j += kLanes) {
    const __m512 centered = _mm512_sub_ps(_mm512_loadu_ps(row + j), _mm512_loadu_ps(center + j));
    const __m512i word =
        _mm512_max_epi32(_mm512_min_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(centered, inverse)), most), least);
    const __m512 meant = _mm512_mul_ps(_mm512_cvtepi32_ps(word), unit);
    const __m512 difference = _mm512_sub_ps(centered, meant);
    squares = _mm512_fmadd_ps(meant, meant, squares);
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

/// sum += four products of an unsigned and a signed byte each, in every lane. As an instruction because GCC
/// 12 moves the sums of the intrinsic from register to register and to memory, at half the speed.
inline void add_products(__m512i& sum, __m512i bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
}

template <size_t kRowsNow>
void byte_step(const uint8_t* panels, size_t quads, const float* scale, const float* bias,
               const int8_t* values, const float* row_scale, const int32_t* start, float* scores,
               size_t score_stride) {
  constexpr size_t kColumns = kTile / kPanel;
  const size_t panel_bytes = quads * kPanel * 4, row_bytes = quads * 4;
  __m512i sums[kRowsNow][kColumns];
#pragma GCC unroll 6
  for (size_t r = 0; r < kRowsNow; ++r)
#pragma GCC unroll 4
    for (size_t c = 0; c < kColumns; ++c) sums[r][c] = _mm512_set1_epi32(start[r]);
  for (size_t q = 0; q < quads; ++q) {
    __m512i entries[kColumns];
#pragma GCC unroll 4
    for (size_t c = 0; c < kColumns; ++c)
      entries[c] = _mm512_loadu_si512(panels + c * panel_bytes + q * kPanel * 4);
#pragma GCC unroll 6
    for (size_t r = 0; r < kRowsNow; ++r) {
      int32_t four;
      memcpy(&four, values + r * row_bytes + q * 4, sizeof(four));
      const __m512i value = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (size_t c = 0; c < kColumns; ++c) add_products(sums[r][c], entries[c], value);
    }
  }
#pragma GCC unroll 4
  for (size_t c = 0; c < kColumns; ++c) {
    const __m512 unit = _mm512_loadu_ps(scale + c * kPanel), offset = _mm512_loadu_ps(bias + c * kPanel);
#pragma GCC unroll 6
    for (size_t r = 0; r < kRowsNow; ++r)
      _mm512_storeu_ps(scores + r * score_stride + c * kPanel,
                       _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][c]),
                                       _mm512_mul_ps(unit, _mm512_set1_ps(row_scale[r])), offset));
  }
}

void screen_bytes(const uint8_t* panels, size_t quads, const float* scale, const float* bias, size_t entries,
                  const ByteRows& rows, size_t count, float* scores, size_t score_stride) {
  const size_t row_bytes = quads * 4;
  for (size_t first = 0; first < entries; first += kTile) {
    const uint8_t* tile = panels + first * row_bytes;
    size_t i = 0;
    for (; i + kRows <= count; i += kRows)
      byte_step<kRows>(tile, quads, scale + first, bias + first, rows.values + i * row_bytes, rows.scale + i,
                       rows.start + i, scores + i * score_stride + first, score_stride);
    for (; i < count; ++i)
      byte_step<1>(tile, quads, scale + first, bias + first, rows.values + i * row_bytes, rows.scale + i,
                   rows.start + i, scores + i * score_stride + first, score_stride);
  }
}

float place_of_classes(const float* best, size_t place) {
  constexpr size_t kVectors = kTile / kLanes;
  const __m512 none = _mm512_set1_ps(-__builtin_inff());
  __m512 values[kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    const __m512 value = _mm512_loadu_ps(best + v * kLanes);
    values[v] = _mm512_mask_mov_ps(none, _mm512_cmp_ps_mask(value, value, _CMP_ORD_Q), value);
  }
  float highest = 0;
  for (size_t i = 0; i <= place; ++i) {
    const __m512 pairs =
        _mm512_max_ps(_mm512_max_ps(values[0], values[1]), _mm512_max_ps(values[2], values[3]));
    highest = _mm512_reduce_max_ps(pairs);
    const __m512 all = _mm512_set1_ps(highest);
    for (size_t v = 0; v < kVectors; ++v)
      values[v] = _mm512_mask_mov_ps(values[v], _mm512_cmp_ps_mask(values[v], all, _CMP_EQ_OQ), none);
  }
  return highest;
}

/// Without a branch for each vector: which of them have a value to keep is not foreseen.
size_t not_below(const float* scores, const float* margins, float error, size_t n, float limit,
                 uint32_t first_id, uint32_t* ids, float* kept) {
  constexpr size_t kVectors = 4;  // tested together; few of them have one where entries are many
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
  constexpr size_t kVectors = kMostRanked / kLanes;
  const __m512 none = _mm512_set1_ps(-__builtin_inff());
  const size_t vectors = (n + kLanes - 1) / kLanes;
  __m512 all[kVectors];
  uint64_t usual = 0;
  for (size_t v = 0; v < vectors; ++v) {
    const size_t left = n - v * kLanes;
    const __mmask16 there = left >= kLanes ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
    all[v] = _mm512_mask_loadu_ps(none, there, values + v * kLanes);
    usual += (uint64_t)_mm_popcnt_u32(_mm512_cmp_ps_mask(all[v], none, _CMP_GT_OQ));
  }
  if (usual != n) return false;
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

bool has_vnni() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512vnni");
}

}  // namespace

const Table& table() {
  static const Table kTable = {exact,    screen_floats_by<4>, has_vnni() ? screen_bytes : nullptr,
                               highest,  highest_of_classes,  place_of_classes,
                               to_bytes, not_below,           rank};
  return kTable;
}

}  // namespace kvcodec::nearest_kernels::avx512
