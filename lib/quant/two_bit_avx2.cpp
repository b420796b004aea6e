#include <immintrin.h>
#include <string.h>

#include "lib/quant/two_bit_kernels_body.hpp"

namespace kvcodec::two_bit_kernels::avx2 {
namespace {

constexpr size_t kLanes = 8;

/// Four levels of a grid in each 128-bit lane.
[[gnu::always_inline]] inline __m256 grid_of(uint16_t scale, uint16_t zero) {
  const __m256 steps = _mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3);
  return _mm256_add_ps(_mm256_cvtph_ps(_mm_set1_epi16((short)zero)),
                       _mm256_mul_ps(steps, _mm256_cvtph_ps(_mm_set1_epi16((short)scale))));
}

/// The 8 values whose levels are the 2 bytes.
[[gnu::always_inline]] inline __m256 values_of(uint16_t bytes, __m256 grid) {
  const __m256i shifts = _mm256_setr_epi32(6, 4, 2, 0, 14, 12, 10, 8);
  return _mm256_permutevar_ps(grid, _mm256_srlv_epi32(_mm256_set1_epi32(bytes), shifts));
}

/// Calls visit(j, count, values) for 8 channels at a time.
template <class Visit>
[[gnu::always_inline]] inline void for_each_vector(const uint8_t* coded, const uint16_t* scales,
                                                   const uint16_t* zeros, size_t dims, const Visit& visit) {
  for (size_t j = 0; j < dims; j += kLanes) {
    const size_t count = dims - j < kLanes ? dims - j : kLanes;
    uint16_t bytes = 0;
    memcpy(&bytes, coded + j / 4, (count + 3) / 4);
    visit(j, count, values_of(bytes, grid_of(scales[j / kGroup], zeros[j / kGroup])));
  }
}

[[gnu::always_inline]] inline void store(__m256 values, size_t count, float* out) {
  if (count == kLanes) return _mm256_storeu_ps(out, values);
  float all[kLanes];
  _mm256_storeu_ps(all, values);
  memcpy(out, all, count * sizeof(float));
}

[[gnu::always_inline]] inline __m256 load(const float* from, size_t count) {
  if (count == kLanes) return _mm256_loadu_ps(from);
  float all[kLanes] = {};
  memcpy(all, from, count * sizeof(float));
  return _mm256_loadu_ps(all);
}

void decode(const uint8_t* coded, const uint16_t* scales, const uint16_t* zeros, size_t dims, float* out) {
  for_each_vector(coded, scales, zeros, dims,
                  [&](size_t j, size_t count, __m256 values) { store(values, count, out + j); });
}

void decode_signed(const uint8_t* coded, const uint16_t* scales, const uint16_t* zeros, const uint8_t* signs,
                   const float* alpha, const float* center, size_t dims, float* out) {
  const __m256i places = _mm256_setr_epi32(128, 64, 32, 16, 8, 4, 2, 1);
  for_each_vector(coded, scales, zeros, dims, [&](size_t j, size_t count, __m256 values) {
    const __m256i bits = _mm256_and_si256(_mm256_set1_epi32(signs[j / 8]), places);
    const __m256 positive = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, places));
    const __m256 magnitude = _mm256_mul_ps(load(alpha + j, count), values), middle = load(center + j, count);
    store(_mm256_blendv_ps(_mm256_sub_ps(middle, magnitude), _mm256_add_ps(middle, magnitude), positive),
          count, out + j);
  });
}

}  // namespace

const Table& table() {
  static constexpr Table kTable = {range, levels, decode, decode_signed};
  return kTable;
}

}  // namespace kvcodec::two_bit_kernels::avx2
