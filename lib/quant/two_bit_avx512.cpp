#include <immintrin.h>
#include <string.h>

#include "lib/quant/two_bit_kernels_body.hpp"

namespace kvcodec::two_bit_kernels::avx512 {
namespace {

constexpr size_t kLanes = 16;

/// Four levels of a grid in each 128-bit lane.
[[gnu::always_inline]] inline __m512 grid_of(uint16_t scale, uint16_t zero) {
  const __m512 steps = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
  return _mm512_add_ps(_mm512_cvtph_ps(_mm256_set1_epi16((short)zero)),
                       _mm512_mul_ps(steps, _mm512_cvtph_ps(_mm256_set1_epi16((short)scale))));
}

/// The 16 values whose levels are the 4 bytes: every lane gets them all, shifts its own to the lowest bits,
/// and takes that entry of the grid.
[[gnu::always_inline]] inline __m512 values_of(uint32_t bytes, __m512 grid) {
  const __m512i shifts = _mm512_setr_epi32(6, 4, 2, 0, 14, 12, 10, 8, 22, 20, 18, 16, 30, 28, 26, 24);
  return _mm512_permutevar_ps(grid, _mm512_srlv_epi32(_mm512_set1_epi32((int)bytes), shifts));
}

/// Lanes whose sign bit, highest first in each byte, is set.
[[gnu::always_inline]] inline __mmask16 positive(uint16_t bits) {
  const __m512i places =
      _mm512_setr_epi32(128, 64, 32, 16, 8, 4, 2, 1, 32768, 16384, 8192, 4096, 2048, 1024, 512, 256);
  return _mm512_test_epi32_mask(_mm512_set1_epi32(bits), places);
}

/// All 16 lanes, or the first `count`: masked stores are slow and cannot be forwarded to later loads, so they
/// are kept for the end of a row.
struct Whole {
  __m512 load(const float* from) const { return _mm512_loadu_ps(from); }
  void store(__m512 values, float* to) const { _mm512_storeu_ps(to, values); }
};
struct Part {
  __mmask16 mask;
  __m512 load(const float* from) const { return _mm512_maskz_loadu_ps(mask, from); }
  void store(__m512 values, float* to) const { _mm512_mask_storeu_ps(to, mask, values); }
};

/// Calls visit(j, lanes, values) for 16 channels at a time.
template <class Visit>
[[gnu::always_inline]] inline void for_each_vector(const uint8_t* coded, const uint16_t* scales,
                                                   const uint16_t* zeros, size_t dims, const Visit& visit) {
  size_t j = 0;
  for (; j + kGroup <= dims; j += kGroup) {
    const __m512 grid = grid_of(scales[j / kGroup], zeros[j / kGroup]);
    uint32_t bytes[2];
    memcpy(bytes, coded + j / 4, sizeof(bytes));
    visit(j, Whole(), values_of(bytes[0], grid));
    visit(j + kLanes, Whole(), values_of(bytes[1], grid));
  }
  for (; j < dims; j += kLanes) {
    const size_t count = dims - j < kLanes ? dims - j : kLanes;
    uint32_t bytes = 0;
    memcpy(&bytes, coded + j / 4, (count + 3) / 4);
    visit(j, Part{(__mmask16)((1u << count) - 1)},
          values_of(bytes, grid_of(scales[j / kGroup], zeros[j / kGroup])));
  }
}

void decode(const uint8_t* coded, const uint16_t* scales, const uint16_t* zeros, size_t dims, float* out) {
  for_each_vector(coded, scales, zeros, dims,
                  [&](size_t j, auto lanes, __m512 values) { lanes.store(values, out + j); });
}

void decode_signed(const uint8_t* coded, const uint16_t* scales, const uint16_t* zeros, const uint8_t* signs,
                   const float* alpha, const float* center, size_t dims, float* out) {
  for_each_vector(coded, scales, zeros, dims, [&](size_t j, auto lanes, __m512 values) {
    uint16_t bits = signs[j / 8];
    if (j + 8 < dims) bits = (uint16_t)(bits | signs[j / 8 + 1] << 8);
    const __m512 magnitude = _mm512_mul_ps(lanes.load(alpha + j), values);
    const __m512 middle = lanes.load(center + j);
    const __m512 below = _mm512_sub_ps(middle, magnitude);
    lanes.store(_mm512_mask_add_ps(below, positive(bits), middle, magnitude), out + j);
  });
}

}  // namespace

const Table& table() {
  static constexpr Table kTable = {range, levels, decode, decode_signed};
  return kTable;
}

}  // namespace kvcodec::two_bit_kernels::avx512
