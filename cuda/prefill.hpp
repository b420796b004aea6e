// Device twin of a prefill's arithmetic (lib/model/prefill_engine.hpp): weights, hidden states, keys and
// values of the layer at work stay in device memory; keys, values and queries of each chunk are copied out
// while the chunk goes on through attention and MLP.
//
// The floats are lib's within rounding: no product is of less than float's precision. The matrix units
// multiply bf16, so operands are taken apart into bf16 whose sum they are exactly (bf16_parts): activations
// in three, weights in as many as their type needs (bf16: one), and of the products of parts those are added
// that matter to a float. What is left out is below 3 * 2^-24 |x| |w| of each product x w; sums of k of them
// are in float, at most k * 2^-23 of the sum of |x w| off where the hardware truncates.
#pragma once

#include <memory>

#include "lib/model/llama_weights.hpp"
#include "lib/model/prefill_engine.hpp"

namespace kvcodec::cuda {

/// For LlamaModel::use. Copies the layers to the device, and the output matrix when logits are first wanted.
/// The weights must outlive it. Throws Error(usage) for heads of more than 256 dimensions, Error(no_device)
/// without cuBLAS, OutOfMemory if the layers do not fit the device's free memory, saying how much they take;
/// so do its calls, where their work does not fit.
std::shared_ptr<PrefillEngine> make_prefill_engine(const LlamaWeights& weights);

}  // namespace kvcodec::cuda
