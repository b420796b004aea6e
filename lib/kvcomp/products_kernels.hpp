// The inner loop of products.hpp once per instruction set, per lib/core/cpu.hpp. Inside lib/kvcomp only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::products_kernels {

/// multiply_symbols for rows of n symbols, `stride` apart, `count` vectors, vector_stride apart, into out,
/// whose rows (one per vector) are out_stride apart.
struct Factors {
  const uint8_t* symbols;
  size_t stride, rows, n;
  const float* vectors;
  size_t vector_stride, count;
  float* out;
  size_t out_stride;
};

KVCODEC_VARIANTS(void multiply(Factors factors);)

}  // namespace kvcodec::products_kernels
