// The sums of fletcher32.hpp once per instruction set. Inside lib/core only; see cpu.hpp.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::fletcher_kernels {

/// Of the n little-endian 16-bit words w[0..n) that start at `bytes`, without any modulus:
/// plain = sum of w[i], weighted = sum of (n - i) * w[i]. n <= 2^22, so that neither overflows 64 bits.
struct Sums {
  uint64_t plain, weighted;
};

KVCODEC_VARIANTS(Sums sums(const unsigned char* bytes, size_t n);)

}  // namespace kvcodec::fletcher_kernels
