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

/// A matrix; row i starts at data + i * stride.
template <class Element>
struct Cells {
  Element* data;
  size_t rows, cols, stride;
};
using Values = Cells<const float>;

/// Grids, one per column or one per row: level k stands for k * steps[i], its symbol is k + offsets[i].
struct Grids {
  bool by_rows;
  const float* steps;
  const float* inverses;  ///< 1 / step, 0 where the step is 0
  const float* bounds;    ///< the largest |reconstruction - value|
  const float* offsets;   ///< integers
  const uint32_t* bases;  ///< offset - kRounderBits: makes symbols of the bits of level + kRounder
};

/// The wide tables take only a number of columns that is a multiple of this; scalar takes any.
constexpr size_t kColumns = 16;

/// Added to a float below 2^22 and subtracted, it rounds it to the nearest integer, ties to even. (The sum of
/// a larger float is far from all sums that give symbols.)
constexpr float kRounder = 0x1.8p23f;
constexpr uint32_t kRounderBits = 0x4b400000;

/// The largest symbol of a level; the next one is the exact symbol (error_bounded.hpp).
constexpr int32_t kLargestSymbol = 254;

struct Table {
  /// Columns or rows get low = min(low, values), high = max(high, values), and columns sums += values, row after row.
  void (*measure)(Values x, bool by_rows, float* low, float* high, float* sums);
  /// Writes the symbols, unless symbols.data is null. failures += the number of values of the column or row that do not
  /// come back within their bound, with a symbol or not. brain: rounded values are bf16, otherwise f16.
  void (*quantize)(Values x, Grids grids, bool brain, Cells<uint8_t> symbols, uint32_t* failures);
  /// Reads the steps and offsets of the grids.
  void (*dequantize)(Cells<const uint8_t> symbols, Grids grids, Cells<float> out);
};

KVCODEC_VARIANTS(const Table& table();)

}  // namespace kvcodec::error_bounded_kernels
