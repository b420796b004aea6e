// The tensors of a model by their place in the forward pass. LlamaModel looks them up, and an
// engine for its prefill (llama.hpp) copies them to its device.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lib/linalg/packed_gemm.hpp"
#include "lib/model/config.hpp"
#include "lib/model/weights.hpp"

namespace kvcodec {

/// y = W x + b. The weight stays in its storage type and is converted block by block.
struct Linear {
  TensorView weight = {};          ///< (outputs, inputs)
  std::vector<float> bias = {};    ///< outputs values, or empty
  Compute compute = Compute::f32;  ///< arithmetic of W x
  /// The weight in its form for products (pack() of linear.hpp); or empty.
  std::vector<PackedMatrix> packed = {};

  size_t outputs() const { return weight.shape[0]; }
  size_t inputs() const { return weight.shape[1]; }
  bool empty() const { return weight.shape.empty(); }  ///< the model has no such part
};

/// A normalisation, as ModelConfig::norm says; the model has none where it is empty.
struct Norm {
  std::vector<float> weight;
  std::vector<float> bias;  ///< NormKind::layer only

  bool empty() const { return weight.empty(); }
};

struct Mlp {
  Linear gate;  ///< empty if the MLP is not gated
  Linear up, down;
};

/// The gated delta rule of a layer, or a convolution alone (DeltaLayers).
struct DeltaNet {
  /// As the convolution reads them, one behind the other; a convolution alone reads products of `query` and `value`.
  Linear query, key, value;
  Linear gate;                                ///< of the output
  Linear beta, decay;                         ///< a number for each value head
  std::vector<float> kernel, kernel_bias;     ///< (mixed_width, kernel); mixed_width, or empty
  std::vector<float> decay_bias, decay_rate;  ///< of each value head
  std::vector<float> norm;                    ///< (value_dim)
};

struct LlamaLayer {
  Norm attention_norm, mlp_norm;          ///< of the inputs of attention and MLP
  Norm attention_out_norm, mlp_out_norm;  ///< of their outputs
  Norm query_norm, key_norm, value_norm;  ///< of head_dim values, or of all heads together
  /// `value` is empty where keys make values, and `key` too where another layer's are used.
  Linear query, key, value, output;
  Linear output_gate;  ///< empty: attention's output is not gated
  DeltaNet delta;      ///< empty in layers with attention, which these have in its place, with `output`
  /// Latent attention, which has no `value`: `key` makes the latent vector and the turned dimensions behind it; queries
  /// are made from query_down(x), normalised, if that is there. The matrices of each head that make its key, (plain_dim,
  /// rank), and its value, (value_dim, rank), from a latent vector.
  Linear query_down;
  Norm query_down_norm, latent_norm;
  std::vector<Linear> key_up, value_up;
  Mlp mlp;                                ///< empty in layers with a mixture of experts
  Linear router;                          ///< (experts, hidden_size)
  std::vector<Mlp> experts;               ///< empty in layers with an MLP
  Mlp shared_expert;                      ///< beside them; empty: there is none
  std::vector<float> shared_expert_gate;  ///< (hidden_size); empty: its output is not gated
  std::vector<float> router_correction;   ///< of each expert, or empty
  std::vector<float> sinks;               ///< of each query head, a score without a key; empty: none
  /// Mixture::beside_mlp: of the router's input, the experts' input and output, the MLP's output; factors of experts.
  Norm router_norm, expert_norm, expert_out_norm, beside_out_norm;
  std::vector<float> expert_scales;
  /// TokenInputs: (width, hidden_size) of a token's embedding and of hidden states, and back.
  Linear token_projection, token_gate, token_output;
  Norm token_output_norm;
  float scale = 1;  ///< of hidden states behind the layer
};

struct LlamaWeights {
  ModelConfig config;
  std::string source;                     ///< for messages: their file
  const TensorView* embedding = nullptr;  ///< (vocabulary_size, hidden_size)
  const TensorView* positions =
      nullptr;  ///< (max_positions, hidden_size), if the model has learned positions
  /// Weights of TokenInputs, if there are any: the table (vocabulary, num_layers * width), the norm of what layers make of embeddings.
  const TensorView* token_table = nullptr;
  Norm token_norm;
  std::vector<LlamaLayer> layers;
  Norm final_norm;
  std::optional<Linear> head;  ///< none: there are no logits
  Compute compute = Compute::f32;
};

/// Looks up every tensor that the configuration names, and checks its shape. Throws Error(bad_input)
/// naming the tensor, what is there and what would be right.
LlamaWeights load_weights(const ModelConfig& config, const WeightSource& source);

/// Sets the arithmetic of weight matrices, except for those that choose experts, which stay in f32: a choice must not depend on
/// rounding. The matrices that `keep` names are rounded or made floats and laid out once, by oneDNN in its own order, floats only
/// where that is faster (packs_floats). The others are rounded or made floats anew for each use, with the same values. The order of
/// the sums may differ.
void compute_in(LlamaWeights& weights, Compute compute, const KeepWeights& keep = {});

/// The output matrix. Throws Error(bad_input) if it is missing.
const Linear& head_of(const LlamaWeights& weights);

}  // namespace kvcodec
