// Groups of consecutive values that share a scale and a bias, as MLX quantizes (github.com/ml-explore/mlx, `quantize` with mode affine,
// mlx/backend/cpu/quantized.cpp) and mlx-lm keeps caches: value = scale * code + bias, codes of 2 to 8 bits.
//
// MLX takes for the bias the end of a group's range that is further from 0, and a scale towards the other end that is the bias divided by a
// whole number, so that 0 is on the grid; then it rounds both to the type of the values. Values that were quantized show both again: the
// bias is one of their ends, and the range is all codes, or one fewer, times the scale.
#pragma once

#include <cstddef>
#include <span>

#include "lib/core/dtype.hpp"

namespace kvcodec {

/// A block is a group: scale and bias, then the codes one behind the other, lowest bits first.
struct AffineGroups {
  unsigned bits = 4;           ///< 2 to 8, and bits * values is a multiple of 8
  size_t values = 64;          ///< of a group
  DType stored = DType::bf16;  ///< type of scales and biases: bf16, f16 or f32

  size_t code_bytes() const { return values * bits / 8; }
  size_t block_bytes() const { return 2 * size_of(stored) + code_bytes(); }
  bool operator==(const AffineGroups&) const = default;
};

/// Quantizes whole groups; `blocks` has exactly their size. A group whose values are on such a grid gets it, as dequantized ones do; any
/// other is quantized as MLX does. Values are finite. Returns whether the blocks give all values back bit for bit.
bool quantize_affine(const AffineGroups& groups, std::span<const float> values, std::span<std::byte> blocks);

/// The inverse: each product and sum rounded to float. MLX rounds their sum to `stored` besides.
void dequantize_affine(const AffineGroups& groups, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace kvcodec
