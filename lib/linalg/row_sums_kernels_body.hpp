// The loops of row_sums_kernels.hpp for all widths (lib/core/cpu.hpp).
#pragma once

#include "lib/core/vectors.hpp"
#include "lib/linalg/row_sums_kernels.hpp"

namespace kvcodec::row_sums_kernels {
namespace {

using namespace vectors;

/// Sums side by side: enough of them that none waits for its last product.
constexpr size_t kVectors = 8;

void add_block(const float* block, const uint8_t* rows, const float* coefficients, const uint8_t* counts,
               size_t count, float* sums) {
  for (size_t i = 0; i < count; ++i) {
    const size_t pairs = counts[i];
    if (pairs == 0) continue;
    const uint8_t* const row = rows + i * kBlock;
    const float* const by = coefficients + i * kBlock;
    for (size_t column = 0; column < kPanel; column += kVectors * kWidth) {
      float* const at = sums + i * kPanel + column;
      const float* const panel = block + column;
      Floats sum[kVectors];
#pragma GCC unroll 8
      for (size_t v = 0; v < kVectors; ++v) sum[v] = load(at + v * kWidth);
      for (size_t k = 0; k < pairs; ++k) {
        const Floats value = spread(by[k]);
        const float* const from = panel + row[k] * (size_t)kPanel;
#pragma GCC unroll 8
        for (size_t v = 0; v < kVectors; ++v) sum[v] = fused(value, load(from + v * kWidth), sum[v]);
      }
#pragma GCC unroll 8
      for (size_t v = 0; v < kVectors; ++v) store(sum[v], at + v * kWidth);
    }
  }
}

constexpr Table kTable = {add_block};

}  // namespace

const Table& KVCODEC_LEVEL::table() { return kTable; }

}  // namespace kvcodec::row_sums_kernels
