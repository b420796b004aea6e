// The inner loops of residual quantization, once per instruction set (lib/core/cpu.hpp). Sums of squares: no
// product is fused with an addition, element i goes to lane i mod 16, the lanes are added as a tree (upper
// half onto lower half). Sums of entries: in the order of the stages.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::residual_kernels {

enum : size_t { kLanes = 16 };

struct Table {
  /// out = row - entry, `padded` floats (a multiple of kLanes); returns the sum of squares of out.
  float (*subtract)(const float* row, const float* entry, size_t padded, float* out);
  /// Row i of `count` is the sum over the stages s of entry ids[i * stages + s] of books[s], whose entries
  /// begin `padded` floats apart; its first `width` floats go to out + i * out_stride.
  void (*sum_entries)(const float* const* books, size_t stages, size_t padded, const uint32_t* ids,
                      size_t count, size_t width, float* out, size_t out_stride);
};

KVCODEC_VARIANTS(const Table& table();)

/// The kernels of the level in force.
const Table& best();

}  // namespace kvcodec::residual_kernels
