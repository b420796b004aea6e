// The inner loops of attention once per instruction set (lib/core/cpu.hpp). Inside lib/attention only.
//
// A product of rows is summed in 16 lanes (element i goes to lane i mod 16), fused, in order; the lanes are
// then added as a tree, upper half onto lower half. All levels give the same bits.
#pragma once

#include <stddef.h>

#include "lib/core/variants.hpp"

namespace kvcodec::attention_kernels {

enum : size_t { kLanes = 16 };

struct Rows {
  const float* const* rows;
  size_t n, dims;
};

struct Table {
  /// out[q * out_stride + t] = queries[q] . rows[t], for t < n. queries: (count, dims rounded up to 16) with
  /// zeros behind dims.
  void (*dots)(const Rows& rows, const float* queries, size_t count, float* out, size_t out_stride);
  /// sums[q] += sum over t of weights[q * weight_stride + t] * rows[t], in order. sums: (count, dims rounded
  /// up to 16).
  void (*sums)(const Rows& rows, const float* weights, size_t weight_stride, size_t count, float* sums);
};

KVCODEC_VARIANTS(const Table& table();)

}  // namespace kvcodec::attention_kernels
