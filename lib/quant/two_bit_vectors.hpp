// Values of 2-bit levels in vectors (lib/core/vectors.hpp): every lane shifts its level to the lowest bits
// and takes that entry of its group's grid.
#pragma once

#include "lib/core/vectors.hpp"

namespace kvcodec::vectors {
namespace {

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

}  // namespace
}  // namespace kvcodec::vectors
