// Derivatives of a function of a model's logits by the keys and values of the cache that the model continues:
// a forward pass over a document's continuation, then a backward pass. There are no derivatives by weights.
//
// The forward pass keeps only each layer's hidden states. The backward pass recomputes everything else that
// it needs, layer by layer, so that only hidden states take memory for every layer. All arithmetic is float,
// with matrix products as in the forward pass (llama.hpp) and sums over a row's values in double. The CPU
// computes it, whatever engine the model uses. The result is the same for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lib/core/progress.hpp"
#include "lib/core/view.hpp"
#include "lib/model/llama.hpp"

namespace kvcodec {

/// Tokens of a document that follow others.
struct Continued {
  std::span<const uint32_t> tokens;  ///< at least one
  size_t past = 0;                   ///< tokens before these, at least one
  PastCache* cache = nullptr;        ///< has their keys and values; reads each layer twice, last descending
  /// Keys are those before the rotary embedding: derivatives by them, though the cache holds them turned.
  bool before_rope = false;
};

/// A function of logits that takes its derivatives. Called on the calling thread.
class Differentiated {
 public:
  virtual ~Differentiated() = default;
  /// Writes the derivatives by the logits of tokens [first, first + logits.rows()): (n, vocabulary_size) both. Called
  /// for all tokens, ascending.
  virtual void by_logits(size_t first, MatrixView<const float> logits, MatrixView<float> derivatives) = 0;
  /// Receives the derivatives by the past tokens' keys and values in a layer, (past, num_kv_heads * head_dim) each,
  /// valid during the call only. Called for all layers, descending.
  virtual void by_cache(int layer, MatrixView<const float> keys, MatrixView<const float> values) = 0;
};

/// The part of the model that cannot be differentiated, for messages; empty: none.
std::string beyond_gradients(const ModelConfig& config);

/// Bytes that differentiate() allocates for so many tokens behind `past` others, on `threads` threads.
uint64_t gradient_bytes(const ModelConfig& config, uint64_t tokens, uint64_t past, int threads);

/// Progress counts layers, there and back. Throws Error(usage) for models that are beyond_gradients(), and otherwise
/// as LlamaModel::prefill. Values that overflow come out as infinities or NaNs.
void differentiate(const LlamaModel& model, const Continued& continued, Differentiated& function,
                   const Progress& progress = {});

}  // namespace kvcodec
