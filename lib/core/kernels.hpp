// The loops of half.hpp and of fletcher32() (digest.hpp), compiled once per instruction set (lib/core/cpu.hpp). No pointer needs
// alignment. Inside lib/core only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::core_kernels {

/// Sums over the n little-endian 16-bit words w[0..n) that start at `bytes`, without any modulus: plain
/// = sum of w[i], weighted = sum of (n - i) * w[i]. n <= 2^22, so that neither overflows 64 bits.
struct WordSums {
  uint64_t plain, weighted;
};

struct Table {
  // Conversions of n elements from `in` to `out`, which do not overlap.
  void (*widen_bf16)(const uint16_t* in, float* out, size_t n);
  void (*widen_f16)(const uint16_t* in, float* out, size_t n);
  void (*narrow_bf16)(const float* in, uint16_t* out, size_t n);
  void (*narrow_f16)(const float* in, uint16_t* out, size_t n);
  WordSums (*sums)(const unsigned char* bytes, size_t n);
};

KVCODEC_VARIANTS(const Table& table();)

}  // namespace kvcodec::core_kernels
