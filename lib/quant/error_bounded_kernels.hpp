// The loops of error_bounded.hpp once per instruction set. Inside lib/quant only; raw pointers because wide
// compile units share no inline code (see lib/core/cpu.hpp).
//
// Every result is a function of one value and its grid, a count, an extreme, or a sum in the order of rows:
// none depends on the width of the instructions.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::error_bounded_kernels {

/// Rows of a matrix; row i starts at data + i * stride.
struct Values {
  const float* data;
  size_t rows, cols, stride;
};

/// Grids, one per column or one per row: level k stands for k * steps[i], its symbol is k + offsets[i].
struct Grids {
  const float* steps;
  const float* inverses;  ///< 1 / step, 0 where the step is 0
  const float* bounds;    ///< what |reconstruction - value| may be
  const float* offsets;   ///< integers
  const uint32_t* bases;  ///< offset - kRounderBits: makes symbols of the bits of level + kRounder
};

/// The wide tables take only a number of columns that is a multiple of this; scalar takes any.
constexpr size_t kColumns = 16;

/// Added to a float below 2^22 and subtracted, it rounds it to the nearest integer, ties to even. (The sum of
/// a larger one is far from all sums that give symbols.)
constexpr float kRounder = 0x1.8p23f;
constexpr uint32_t kRounderBits = 0x4b400000;

/// The largest symbol of a level; the next one is the exact symbol (error_bounded.hpp).
constexpr int32_t kLargestSymbol = 254;

/// Functions of columns take grids of columns, functions of rows grids of rows. `brain`: rounded values are
/// bf16, otherwise f16.
struct Table {
  /// low = min(low, values), high = max(high, values), sums += values, row after row.
  void (*moments_of_columns)(Values x, float* low, float* high, float* sums);
  void (*extremes_of_rows)(Values x, float* low, float* high);
  /// failures += how many values do not come back within their bound, symbol or not.
  void (*failures_of_columns)(Values x, Grids grids, bool brain, uint32_t* failures);
  void (*failures_of_rows)(Values x, Grids grids, bool brain, uint32_t* failures);
  /// The same, and writes the symbols: row i starts at symbols + i * symbol_stride.
  void (*quantize_columns)(Values x, Grids grids, bool brain, uint8_t* symbols, size_t symbol_stride,
                           uint32_t* failures);
  void (*quantize_rows)(Values x, Grids grids, bool brain, uint8_t* symbols, size_t symbol_stride,
                        uint32_t* failures);
  /// out has `rows` rows and `cols` columns. Of the grids, steps and offsets are read.
  void (*dequantize_columns)(const uint8_t* symbols, size_t symbol_stride, Grids grids, float* out,
                             size_t rows, size_t cols, size_t stride);
  void (*dequantize_rows)(const uint8_t* symbols, size_t symbol_stride, Grids grids, float* out, size_t rows,
                          size_t cols, size_t stride);
};

KVCODEC_VARIANTS(const Table& table();)

}  // namespace kvcodec::error_bounded_kernels
