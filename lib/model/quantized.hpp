// Blocks of quantized weights to floats.
#pragma once

#include <cstddef>
#include <span>

#include "lib/model/tensor_type.hpp"

namespace kvcodec {

/// Dequantizes whole blocks of a quantized type: out.size() is a multiple of the block's values, and `blocks`
/// holds exactly the blocks of so many. Every value is what the type's formula gives in float arithmetic,
/// products and sums rounded one by one, and the same at every level of wide instructions, but for which NaN a NaN is.
void dequantize(TensorType type, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace kvcodec
