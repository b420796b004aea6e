// The inner loops of attention once per instruction set (lib/core/cpu.hpp). Inside lib/attention only.
//
// A product of rows is summed in 16 lanes (element i goes to lane i mod 16), fused, in order; the lanes are
// then added as a tree, upper half onto lower half. All levels give the same bits.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::attention_kernels {

enum : size_t { kLanes = 16 };

/// What rows consist of: floats of three types, or 2-bit levels (lib/quant/two_bit.hpp) without and with
/// signs. A pointer to a row points to its first element, or to a CodedRow; coded rows have a multiple of 32
/// dimensions.
enum RowType { kF32, kF16, kBf16, kTwoBit, kSignedTwoBit, kRowTypes };

struct CodedRow {
  const uint8_t* levels;
  const uint16_t* scales;
  const uint16_t* zeros;
  const uint8_t* signs;  // kSignedTwoBit only: an element is its magnitude or the negative of that
};

struct Table {
  /// out[q * out_stride + t] = queries[q] . rows[t], for t < n. queries: (count, dims rounded up to 16) with
  /// zeros behind dims.
  void (*dots[kRowTypes])(const void* const* rows, size_t n, const float* queries, size_t count, size_t dims,
                          float* out, size_t out_stride);
  /// sums[q] += sum over t of weights[q * weight_stride + t] * rows[t], in order. sums: (count, dims rounded
  /// up to 16).
  void (*sums[kRowTypes])(const void* const* rows, size_t n, const float* weights, size_t weight_stride,
                          size_t count, size_t dims, float* sums);
};

KVCODEC_VARIANTS(const Table& table();)

}  // namespace kvcodec::attention_kernels
