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

}  // namespace
}  // namespace kvcodec::nearest_kernels

#include "lib/linalg/nearest_kernels_body.hpp"

#define KVCODEC_INLINE inline __attribute__((always_inline))
#define KVCODEC_VNNI __attribute__((target("avx512vnni")))

namespace kvcodec::nearest_kernels::avx512 {
namespace {

/// The lanes as a tree: the upper half onto the lower half until one is left.
float sum_of(__m512 lanes) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

void exact(const float* row, const float* entries, size_t padded, const uint32_t* ids, size_t count,
           float* out) {
  for (size_t i = 0; i < count; ++i) {
    const float* entry = entries + (size_t)ids[i] * padded;
    __m512 sum = _mm512_setzero_ps();
    for (size_t j = 0; j < padded; j += kLanes)
      sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_loadu_ps(row + j), _mm512_loadu_ps(entry + j)));
    out[i] = sum_of(sum);
  }
}

float to_bytes(const float* row, const float* center, size_t padded, int8_t* out, int32_t* sum,
               float* moments) {
  __m512 largest = _mm512_setzero_ps();
  for (size_t j = 0; j < padded; j += kLanes) {
    const __m512 centered = _mm512_sub_ps(_mm512_loadu_ps(row + j), _mm512_loadu_ps(center + j));
    largest = _mm512_max_ps(largest, _mm512_abs_ps(centered));
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
  return scale;
}

/// Adds the products of four bytes in each lane. Written out because GCC 12 copies sums to and fro around the
/// intrinsic, which halves the speed.
KVCODEC_VNNI KVCODEC_INLINE void add_products(__m512i& sum, __m512i entries, __m512i row) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(entries), "v"(row));
}

/// The sums of one row with kTile entries. Not an array: GCC would keep that in memory.
struct RowSums {
  __m512i first, second, third, fourth;
};

KVCODEC_INLINE RowSums all_of(int32_t value) {
  const __m512i all = _mm512_set1_epi32(value);
  return {all, all, all, all};
}

KVCODEC_VNNI KVCODEC_INLINE void add_quad(RowSums& sums, const int8_t* values, const RowSums& entries) {
  int32_t four;
  memcpy(&four, values, sizeof(four));
  const __m512i row = _mm512_set1_epi32(four);
  add_products(sums.first, entries.first, row);
  add_products(sums.second, entries.second, row);
  add_products(sums.third, entries.third, row);
  add_products(sums.fourth, entries.fourth, row);
}

KVCODEC_INLINE void store_scores(__m512i sums, const float* scale, const float* bias, float row_scale,
                                 float* scores) {
  const __m512 unit = _mm512_mul_ps(_mm512_loadu_ps(scale), _mm512_set1_ps(row_scale));
  _mm512_storeu_ps(scores, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), unit, _mm512_loadu_ps(bias)));
}

/// kRowsNow rows, 1 or kRows, with kTile entries.
template <size_t kRowsNow>
KVCODEC_VNNI void byte_step(const uint8_t* panels, size_t quads, const float* scale, const float* bias,
                            const int8_t* values, const float* row_scale, const int32_t* start, float* scores,
                            size_t score_stride) {
  static_assert(kTile == 4 * kPanel && (kRowsNow == 1 || kRowsNow == 6));
  constexpr bool kAll = kRowsNow > 1;
  const size_t panel_bytes = quads * kPanel * 4, row_bytes = quads * 4;
  RowSums row0 = all_of(start[0]), row1 = all_of(start[kAll ? 1 : 0]), row2 = all_of(start[kAll ? 2 : 0]),
          row3 = all_of(start[kAll ? 3 : 0]), row4 = all_of(start[kAll ? 4 : 0]),
          row5 = all_of(start[kAll ? 5 : 0]);
  for (size_t q = 0; q < quads; ++q, panels += kPanel * 4, values += 4) {
    const RowSums entries = {_mm512_loadu_si512(panels), _mm512_loadu_si512(panels + panel_bytes),
                             _mm512_loadu_si512(panels + 2 * panel_bytes),
                             _mm512_loadu_si512(panels + 3 * panel_bytes)};
    add_quad(row0, values, entries);
    if (!kAll) continue;
    add_quad(row1, values + row_bytes, entries);
    add_quad(row2, values + 2 * row_bytes, entries);
    add_quad(row3, values + 3 * row_bytes, entries);
    add_quad(row4, values + 4 * row_bytes, entries);
    add_quad(row5, values + 5 * row_bytes, entries);
  }
  const RowSums rows[] = {row0, row1, row2, row3, row4, row5};
  for (size_t r = 0; r < kRowsNow; ++r) {
    float* out = scores + r * score_stride;
    store_scores(rows[r].first, scale, bias, row_scale[r], out);
    store_scores(rows[r].second, scale + kPanel, bias + kPanel, row_scale[r], out + kPanel);
    store_scores(rows[r].third, scale + 2 * kPanel, bias + 2 * kPanel, row_scale[r], out + 2 * kPanel);
    store_scores(rows[r].fourth, scale + 3 * kPanel, bias + 3 * kPanel, row_scale[r], out + 3 * kPanel);
  }
}

KVCODEC_VNNI void screen_bytes(const uint8_t* panels, size_t quads, const float* scale, const float* bias,
                               size_t entries, const ByteRows& rows, size_t count, float* scores,
                               size_t score_stride) {
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

size_t not_below(const float* scores, size_t n, float limit, uint32_t first_id, uint32_t* ids, float* kept) {
  const __m512 least = _mm512_set1_ps(limit);
  const __m512i step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  size_t found = 0;
  for (size_t i = 0; i < n; i += kLanes) {
    const __m512 score = _mm512_loadu_ps(scores + i);
    const __mmask16 mask = _mm512_cmp_ps_mask(score, least, _CMP_NLT_UQ);
    if (mask == 0) continue;
    const __m512i id = _mm512_add_epi32(_mm512_set1_epi32((int)(first_id + (uint32_t)i)), step);
    _mm512_storeu_si512(ids + found, _mm512_maskz_compress_epi32(mask, id));
    _mm512_storeu_ps(kept + found, _mm512_maskz_compress_ps(mask, score));
    found += (size_t)_mm_popcnt_u32(mask);
  }
  return found;
}

bool has_vnni() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512vnni");
}

}  // namespace

const Table& table() {
  static const Table kTable = {exact,    screen_floats_by<4>, has_vnni() ? screen_bytes : nullptr,
                               highest,  highest_of_classes,  to_bytes,
                               not_below};
  return kTable;
}

}  // namespace kvcodec::nearest_kernels::avx512
