// Screening by bytes: four products and their sum are one instruction. All else is as in avx512.
#include <immintrin.h>
#include <string.h>

#include "lib/linalg/nearest_kernels.hpp"

namespace kvcodec::nearest_kernels {
namespace {

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

}  // namespace

const Table& avx512_vnni::table() {
  static const Table kTable = [] {
    Table table = avx512::table();
    table.screen_bytes = screen_bytes;
    return table;
  }();
  return kTable;
}

}  // namespace kvcodec::nearest_kernels
