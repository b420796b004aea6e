// Error-bounded uniform quantization of units of values: the lossy stage of KVComp (Jiang et al., "KVComp: A
// High-Performance, LLM-Aware, Lossy Compression Framework for KV Cache", 2025, section 3.1.1). Level k of a
// unit stands for k * step, so the grid has a level at 0; symbol s of a value stands for level
//
//     k = s - kZeroSymbol + origin,    reconstruction = float(k) * step   (a product of two floats)
//
// where origin is 0 or, for columns, a level near the column's mean, so that channels far from 0 need no more
// symbols than others and all share one distribution.
//
// The promise: for every value whose symbol is not kExactSymbol, the reconstruction as a float and the reconstruction rounded to the 16-bit
// type of the values both lie within the unit's bound of the value. It is checked value by value; values that fail (rounding to 16 bits,
// more levels than symbols) get kExactSymbol, and the caller stores them exactly.
//
// Steps are stored in f16. The widest step that can keep the promise is twice the bound. With it, rounding to
// 16 bits takes values of some sizes beyond the bound, and these must be stored exactly. So a step is made a
// little smaller where that costs fewer bits than storing those values.
//
// All functions take finite values, run on the calling thread and give the same result at every SIMD level.
// They throw Error(failed) if shapes do not fit together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// The largest distance between a value and its reconstruction. The smallest of the bounds > 0 holds; at least one must be.
struct ErrorBound {
  double range = 0;      ///< in units of max - min of the unit (half of KVComp's relative scale)
  double absolute = 0;   ///< in the values' own unit
  double magnitude = 0;  ///< in units of the largest |value| of the unit
};

/// Symbol of the origin of a unit.
inline constexpr int kZeroSymbol = 127;

/// The value has no symbol within the bound: it is to be stored exactly.
inline constexpr uint8_t kExactSymbol = 255;

/// The values of an (n, c) matrix that share a step.
enum class UnitShape {
  column,  ///< one channel over all rows; c units
  row,     ///< one token over all columns; n units
  block,   ///< all; 1 unit
};

/// The number of units (hence steps) of an (n, c) matrix.
constexpr size_t unit_count(UnitShape unit, size_t rows, size_t columns) {
  return unit == UnitShape::column ? columns : unit == UnitShape::row ? rows : 1;
}

/// Codes of an (n, c) matrix.
struct BoundedCodes {
  std::span<float> steps;
  std::span<int16_t> origins;
  MatrixView<uint8_t> symbols;
};

/// Chooses the step of every unit and quantizes with it. x: (n, c), values of `storage` (f16 or bf16). steps: unit_count
/// values. A step is a value of f16, >= 0, at most twice the bound, except that units of one value repeated may get this
/// value's magnitude as their step and come back exactly. 0: only values within the bound of 0 can be represented (the
/// unit is all zeros, or its step would be below the smallest of f16). origins: c values, for units of columns and
/// blocks, or empty: all origins 0. symbols: (n, c). Throws Error(usage) if no bound is > 0.
void quantize_bounded(MatrixView<const float> x, UnitShape unit, const ErrorBound& bound, DType storage,
                      const BoundedCodes& out);

/// The inverse; shapes as in quantize_bounded, out: (n, c). Where the symbol is kExactSymbol, out is finite but
/// meaningless: the caller writes the value there.
void dequantize_bounded(MatrixView<const uint8_t> symbols, UnitShape unit, std::span<const float> steps,
                        std::span<const int16_t> origins, MatrixView<float> out);

}  // namespace kvcodec
