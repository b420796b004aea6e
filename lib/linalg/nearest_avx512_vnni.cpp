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

/// Scores of the first kRowsNow rows with the first tile of entries.
template <size_t kRowsNow>
void byte_step(const ByteEntries& of, const ByteRows& rows, float* scores, size_t stride) {
  constexpr size_t kColumns = kTile / kPanel;
  const size_t quads = of.quads, panel_bytes = quads * kPanel * 4, row_bytes = quads * 4;
  __m512i sums[kRowsNow][kColumns];
#pragma GCC unroll 6
  for (size_t r = 0; r < kRowsNow; ++r)
#pragma GCC unroll 4
    for (size_t c = 0; c < kColumns; ++c) sums[r][c] = _mm512_set1_epi32(rows.start[r]);
  for (size_t q = 0; q < quads; ++q) {
    __m512i entries[kColumns];
#pragma GCC unroll 4
    for (size_t c = 0; c < kColumns; ++c)
      entries[c] = _mm512_loadu_si512(of.panels + c * panel_bytes + q * kPanel * 4);
#pragma GCC unroll 6
    for (size_t r = 0; r < kRowsNow; ++r) {
      int32_t four;
      memcpy(&four, rows.values + r * row_bytes + q * 4, sizeof(four));
      const __m512i value = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (size_t c = 0; c < kColumns; ++c) add_products(sums[r][c], entries[c], value);
    }
  }
#pragma GCC unroll 4
  for (size_t c = 0; c < kColumns; ++c) {
    const __m512 unit = _mm512_loadu_ps(of.scale + c * kPanel),
                 offset = _mm512_loadu_ps(of.bias + c * kPanel);
#pragma GCC unroll 6
    for (size_t r = 0; r < kRowsNow; ++r)
      _mm512_storeu_ps(scores + r * stride + c * kPanel,
                       _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][c]),
                                       _mm512_mul_ps(unit, _mm512_set1_ps(rows.scale[r])), offset));
  }
}

void screen_bytes(const ByteEntries& entries, const ByteRows& rows, float* scores, size_t stride) {
  const size_t row_bytes = entries.quads * 4;
  for (size_t first = 0; first < entries.count; first += kTile) {
    const ByteEntries tile{entries.panels + first * row_bytes, entries.quads, entries.scale + first,
                           entries.bias + first, kTile};
    for (size_t i = 0, now; i < rows.count; i += now) {
      now = rows.count - i >= kRows ? (size_t)kRows : 1;
      const ByteRows some{rows.values + i * row_bytes, rows.scale + i, rows.start + i, now};
      (now == kRows ? byte_step<kRows> : byte_step<1>)(tile, some, scores + i * stride + first, stride);
    }
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
