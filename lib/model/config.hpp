// What a model of the Llama family looks like: sizes, rotary embedding, and the switches in which its members
// differ.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/names.hpp"

namespace kvcodec {

/// Llama covers everything of that type (SmolLM, TinyLlama …), Qwen2 also 2.5.
enum class ModelFamily { llama, mistral, qwen2, qwen3 };

constexpr auto names_of(ModelFamily) {
  return std::to_array<std::string_view>({"llama", "mistral", "qwen2", "qwen3"});
}

/// How rotary frequencies are stretched for contexts longer than the model was first trained on.
struct RopeScaling {
  enum class Kind {
    none,
    linear,   ///< all frequencies divided by `factor` (Chen et al. 2023, position interpolation)
    llama3,   ///< long wavelengths divided by `factor`, short ones kept, a blend between (Llama 3.1's
              ///< reference code)
    divided,  ///< each frequency by a number of its own (what GGUF files make of llama3)
  };
  Kind kind = Kind::none;
  double factor = 1;
  double low_frequency_factor = 1;   ///< llama3: wavelengths above original_positions / this are divided
  double high_frequency_factor = 4;  ///< llama3: wavelengths below original_positions / this are kept
  double original_positions = 8192;  ///< llama3: context length of the first training
  std::vector<float> divisors = {};  ///< divided: head_dim / 2 of them
};

/// More than any model of these families has; what is above is taken for damage.
inline constexpr int kMaxLayers = 4096;

struct ModelConfig {
  ModelFamily family = ModelFamily::llama;
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;  ///< width of the gated MLP
  int num_q_heads = 0;
  int num_kv_heads =
      0;  ///< a divisor of num_q_heads; query head h reads key/value head h / (num_q_heads / num_kv_heads)
  int head_dim = 0;  ///< even; not always hidden_size / num_q_heads
  int vocabulary_size = 0;
  int max_positions =
      0;  ///< context length the model was made for; a hint, longer documents are computed all the same
  double norm_epsilon = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool qkv_bias = false;     ///< biases on the query, key and value projections
  bool output_bias = false;  ///< bias on the attention's output projection
  bool mlp_bias = false;     ///< biases on the three MLP projections
  bool qk_norm = false;  ///< every query and key head is RMS-normalised before the rotary embedding (Qwen3)
  bool tied_embeddings = false;  ///< logits use the embedding matrix
  /// Per layer: a token attends to that many tokens, itself included; 0 = to all before it.
  std::vector<int64_t> window;

  int group_size() const { return num_q_heads / num_kv_heads; }
  int query_width() const { return num_q_heads * head_dim; }
  int key_width() const { return num_kv_heads * head_dim; }
};

/// Checks ranges and that the sizes fit together; afterwards products of any four sizes fit 64 bits.
/// Throws Error(bad_input) naming the field as config.json calls it, its value and what would be right.
void check(const ModelConfig& config);

}  // namespace kvcodec
