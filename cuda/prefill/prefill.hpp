// CUDA implementation of a prefill's arithmetic (lib/model/llama.hpp): weights, hidden states, keys and
// values of the layer at work stay in device memory; keys, values and wanted queries of each chunk are copied out
// while the chunk goes on through attention and MLP.
//
// The floats are lib's within rounding: no product is of less than float's precision. The matrix units
// multiply bf16, so operands are split into bf16 whose exact sum they are (bf16_parts): activations into
// three, weights into as many as their type needs (bf16: one), and those products of parts are added that
// matter to a float. The others are below 3 * 2^-24 |x| |w| of each product x w.
//
// The matrix units truncate sums, so that a long sum becomes too small (kernel.cuh). Sums are therefore cut
// into stretches, which are added with rounding to nearest: products with weights have 1024 inputs each
// (cuda/prefill/blas.hpp), attention has 16 channels or keys.
#pragma once

#include <memory>

#include "cuda/runtime/device_work.hpp"
#include "lib/model/llama.hpp"
#include "lib/model/llama_weights.hpp"

namespace kvcodec::cuda {

/// For LlamaModel::use. Copies the layers to the device, and the output matrix when logits are first wanted. The
/// device and the weights must outlive it. Throws Error(usage) for models with more than Llama's parts
/// (beyond_llama), heads of more than 256 dimensions or more than 65535 key/value heads, Error(no_device) without
/// cuBLAS, and OutOfMemory with their size if the layers do not fit the device's free memory.
std::shared_ptr<PrefillEngine> make_prefill_engine(const DeviceWork& device, const LlamaWeights& weights);

}  // namespace kvcodec::cuda
