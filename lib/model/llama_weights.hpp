// The tensors of a Llama-family model by their place in the forward pass: what LlamaModel looks up, and an
// engine for its prefill (prefill_engine.hpp) copies to where it computes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lib/model/config.hpp"
#include "lib/model/weights.hpp"

namespace kvcodec {

/// y = W x + b. The weight stays in its storage type and is widened block by block.
struct Linear {
  const TensorView* weight = nullptr;  ///< (outputs, inputs)
  std::vector<float> bias;             ///< outputs values, or empty

  size_t outputs() const { return weight->shape[0]; }
  size_t inputs() const { return weight->shape[1]; }
};

struct LlamaLayer {
  std::vector<float> attention_norm, mlp_norm;
  std::vector<float> query_norm, key_norm;  ///< empty unless the config says qk_norm
  Linear query, key, value, output, gate, up, down;
};

struct LlamaWeights {
  ModelConfig config;
  std::string source;                     ///< for messages: where they come from
  const TensorView* embedding = nullptr;  ///< (vocabulary_size, hidden_size)
  std::vector<LlamaLayer> layers;
  std::vector<float> final_norm;
  std::optional<Linear> head;  ///< none: there are no logits
};

}  // namespace kvcodec
