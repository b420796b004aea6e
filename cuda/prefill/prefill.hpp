// CUDA implementation of a prefill's arithmetic (lib/model/prefill_engine.hpp): weights, hidden states, keys and
// values of the layer at work stay in device memory; keys, values and wanted queries of each chunk are copied out
// while the chunk goes on through attention and MLP.
//
// The floats are lib's within rounding: no product is of less than float's precision. The matrix units
// multiply bf16, so operands are taken apart into bf16 whose sum they are exactly (bf16_parts): activations
// in three, weights in as many as their type needs (bf16: one), and of the products of parts those are added
// that matter to a float. What is left out is below 3 * 2^-24 |x| |w| of each product x w.
//
// The matrix units truncate what they add, so that a long sum comes out too small (kernel.cuh). Sums are
// therefore cut into stretches, which are added with rounding to nearest: of products with weights each has
// 1024 inputs (cuda/prefill/blas.hpp), in attention 16 channels or keys.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "lib/model/llama_weights.hpp"
#include "lib/model/prefill_engine.hpp"

namespace kvcodec::cuda {

/// Channels of a score, or keys of an output, that attention sums on the matrix units before it rounds.
inline constexpr size_t kAttentionStretch = 16;

/// How far a sum of k products x w may be off, over the sum of |x w|: what of the parts is left out, and a
/// rounding for each of the up to six products of parts; for each 8 products of a stretch, the 9 numbers cut
/// off below 2^-24 of the largest and their sum after 24 bits; a rounding per stretch. Products of small
/// parts are below 2^-8 of the whole, and nowhere cut.
constexpr double prefill_sum_error(size_t k, size_t stretch) {
  const auto count = static_cast<double>(k), at_once = static_cast<double>(std::min(k, stretch));
  const double blocks = (at_once + 7) / 8 + (count + 7) / 8 * 0x1p-8;
  return (3 + 6 + 11 * blocks + 1 + count / static_cast<double>(stretch)) * 0x1p-24;
}

/// For LlamaModel::use. Copies the layers to the device, and the output matrix when logits are first wanted.
/// The weights must outlive it. Throws Error(usage) for models that have more than Llama's parts
/// (beyond_llama), heads of more than 256 dimensions or more than 65535 key/value heads, Error(no_device) without
/// cuBLAS, and OutOfMemory if the layers do not fit the device's free memory, saying how much they take. Its calls
/// throw OutOfMemory too, where their work does not fit.
std::shared_ptr<PrefillEngine> make_prefill_engine(const LlamaWeights& weights);

}  // namespace kvcodec::cuda
