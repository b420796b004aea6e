// Floats to blocks of quantized types: those that llama.cpp keeps caches in.
#pragma once

#include <cstddef>
#include <span>

#include "lib/model/tensor_type.hpp"

namespace kvcodec {

/// Quantizes whole blocks to q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl: values.size() is a multiple of the block's values, and
/// `blocks` has the room of exactly so many. Scales are chosen as ggml's reference does (github.com/ggml-org/ggml,
/// src/ggml-quants.c), so that values that came out of such a block, in f32, become the same block again: the largest
/// magnitude or both ends of the range fall on the grid. Throws Error(failed) for other types.
void quantize(TensorType type, std::span<const float> values, std::span<std::byte> blocks);

}  // namespace kvcodec
