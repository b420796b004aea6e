// The inner loops of two_bit.hpp once per instruction set (lib/core/cpu.hpp). Inside lib/quant only. No
// alignment needed; nothing is read or written outside the arrays.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::two_bit_kernels {

struct Table {
  /// Smallest and largest of n >= 1 values.
  void (*range)(const float* x, size_t n, float* low, float* high);
  /// Packs the levels of n <= 32 values on one grid; divisor is its scale, or 1 where that is 0.
  void (*levels)(const float* x, size_t n, float zero, float divisor, uint8_t* out);
  /// One row: out[j] = zero + level * scale.
  void (*decode)(const uint8_t* levels, const uint16_t* scales, const uint16_t* zeros, size_t dims,
                 float* out);
  /// One row with signs: out[j] = center[j] +- alpha[j] * (zero + level * scale).
  void (*decode_signed)(const uint8_t* levels, const uint16_t* scales, const uint16_t* zeros,
                        const uint8_t* signs, const float* alpha, const float* center, size_t dims,
                        float* out);
};

KVCODEC_VARIANTS(const Table& table();)

}  // namespace kvcodec::two_bit_kernels
