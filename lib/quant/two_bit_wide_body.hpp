// Decoding of two_bit_kernels.hpp in vectors (see lib/core/cpu.hpp).
#pragma once

#include "lib/core/vectors.hpp"
#include "lib/quant/two_bit_kernels.hpp"

namespace kvcodec::two_bit_kernels {
namespace {

using namespace vectors;

// Every lane shifts its level to the lowest bits and takes that entry of its group's grid.

/// The four values of a grid, in each 128-bit lane.
KVCODEC_INLINE Floats grid_of(Floats scale, Floats zero) {
  const float steps[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
  return zero + load(steps) * scale;
}

/// The kWidth values whose levels begin at a byte, the first in its highest bits.
KVCODEC_INLINE Floats values_of_levels(uint32_t bytes, Floats grid) {
  const int32_t shifts[16] = {6, 4, 2, 0, 14, 12, 10, 8, 22, 20, 18, 16, 30, 28, 26, 24};
  const Words levels = (Words)spread((int32_t)bytes) >> load_as<Words>(shifts);
  return KVCODEC_BY_WIDTH(_mm256_permutevar_ps, _mm512_permutevar_ps)(grid, (Register)levels);
}

KVCODEC_INLINE Floats spread_f16(uint16_t value) {
  return widen_f16((Halves)KVCODEC_BY_WIDTH(_mm_set1_epi16, _mm256_set1_epi16)((short)value));
}

/// The places of the bits of kWidth lanes, the highest of each byte first.
KVCODEC_INLINE Ints places_of_bits() {
  const int32_t places[16] = {128, 64, 32, 16, 8, 4, 2, 1, 32768, 16384, 8192, 4096, 2048, 1024, 512, 256};
  return load_as<Ints>(places);
}

/// All lanes, or the first `count`: masked stores are slow and cannot be forwarded to later loads, so they are kept for the end of a row.
struct Whole {
  KVCODEC_INLINE Floats load(const float* from) const { return vectors::load(from); }
  KVCODEC_INLINE void store(Floats values, float* to) const { vectors::store(values, to); }
};
struct Part {
  size_t count;
  KVCODEC_INLINE Floats load(const float* from) const { return load_first(from, count); }
  KVCODEC_INLINE void store(Floats values, float* to) const { store_first(values, to, count); }
};

/// Calls visit(j, lanes, values) for one vector of channels after another.
template <class Visit>
KVCODEC_INLINE void for_each_vector(const Row& row, const Visit& visit) {
  const auto [coded, scales, zeros, dims] = row;
  size_t j = 0;
  for (; j + kGroup <= dims; j += kGroup) {
    const Floats grid = grid_of(spread_f16(scales[j / kGroup]), spread_f16(zeros[j / kGroup]));
#pragma GCC unroll 4
    for (size_t k = 0; k < kGroup; k += kWidth) {
      uint32_t bytes = 0;
      memcpy(&bytes, coded + (j + k) / 4, kWidth / 4);
      visit(j + k, Whole(), values_of_levels(bytes, grid));
    }
  }
  for (; j < dims; j += kWidth) {
    const size_t count = dims - j < kWidth ? dims - j : kWidth;
    const Floats grid = grid_of(spread_f16(scales[j / kGroup]), spread_f16(zeros[j / kGroup]));
    uint32_t bytes = 0;
    memcpy(&bytes, coded + j / 4, (count + 3) / 4);
    visit(j, Part{count}, values_of_levels(bytes, grid));
  }
}

void decode(const Row& row, float* out) {
  for_each_vector(
      row, [&](size_t j, auto lanes, Floats values)
               __attribute__((always_inline)) { lanes.store(values, out + j); });
}

void decode_signed(const Row& row, const Signs& signs, float* out) {
  for_each_vector(
      row, [&](size_t j, auto lanes, Floats values) __attribute__((always_inline)) {
        uint32_t bits = signs.bits[j / 8];
        if (kWidth > 8 && j + 8 < row.dims) bits |= (uint32_t)signs.bits[j / 8 + 1] << 8;
        const Floats magnitude = lanes.load(signs.alpha + j) * values, middle = lanes.load(signs.center + j);
        const Floats above = middle + magnitude, below = middle - magnitude;
        lanes.store((spread((int32_t)bits) & places_of_bits()) != 0 ? above : below, out + j);
      });
}

constexpr Table kTable = {range, refine, levels, decode, decode_signed};

}  // namespace

const Table& KVCODEC_LEVEL::table() { return kTable; }

}  // namespace kvcodec::two_bit_kernels
