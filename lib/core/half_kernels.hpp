// The bulk conversions of half.hpp once per instruction set (lib/core/cpu.hpp): n elements from `in` to
// `out`, which need no alignment and do not overlap. Inside lib/core only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::half_kernels {

struct Table {
  void (*widen_bf16)(const uint16_t* in, float* out, size_t n);
  void (*widen_f16)(const uint16_t* in, float* out, size_t n);
  void (*narrow_bf16)(const float* in, uint16_t* out, size_t n);
  void (*narrow_f16)(const float* in, uint16_t* out, size_t n);
};

KVCODEC_VARIANTS(const Table& table();)

}  // namespace kvcodec::half_kernels
