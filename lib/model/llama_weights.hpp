// The tensors of a model by their place in the forward pass: what LlamaModel looks up, and an
// engine for its prefill (llama.hpp) copies to where it computes.
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
  Compute compute = Compute::f32;  ///< how W x is made
  /// The weight as it is multiplied, kept for products (pack() of linear.hpp); or empty.
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

struct LlamaLayer {
  Norm attention_norm, mlp_norm;          ///< of what attention and MLP read
  Norm attention_out_norm, mlp_out_norm;  ///< of what they add
  Norm query_norm, key_norm;              ///< of head_dim values, or of all heads together
  Linear query, key, value, output;
  /// Latent attention, which has no `value`: `key` makes the latent vector and behind it what is turned; queries are made
  /// of query_down(x), normalised, if that is there. Of each head, what makes its key, (plain_dim, rank), and its value,
  /// (value_dim, rank), of a latent vector.
  Linear query_down;
  Norm query_down_norm, latent_norm;
  std::vector<Linear> key_up, value_up;
  Mlp mlp;                               ///< empty in layers with a mixture of experts
  Linear router;                         ///< (experts, hidden_size)
  std::vector<Mlp> experts;              ///< empty in layers with an MLP
  Mlp shared_expert;                     ///< beside them; empty: there is none
  std::vector<float> router_correction;  ///< of each expert, or empty
  std::vector<float> sinks;              ///< of each query head, a score without a key; empty: none
};

struct LlamaWeights {
  ModelConfig config;
  std::string source;                     ///< for messages: where they come from
  const TensorView* embedding = nullptr;  ///< (vocabulary_size, hidden_size)
  std::vector<LlamaLayer> layers;
  Norm final_norm;
  std::optional<Linear> head;  ///< none: there are no logits
  Compute compute = Compute::f32;
};

/// Looks up every tensor that the configuration speaks of, under its names, and checks the shapes. Throws
/// Error(bad_input) naming the tensor, what is there and what would be right.
LlamaWeights load_weights(const ModelConfig& config, const WeightSource& source);

/// From now on weight matrices are multiplied so, except for those that choose experts, which stay in f32: a choice is not a
/// matter of rounding. What `keep` says is rounded or made floats and laid out once, all by oneDNN in its own order, floats
/// only where that is faster (packs_floats). The others are rounded or made floats anew for each use, to the same. The order of the
/// sums may be another one.
void compute_in(LlamaWeights& weights, Compute compute, const KeepWeights& keep = {});

/// The output matrix. Throws Error(bad_input) if it is missing.
const Linear& head_of(const LlamaWeights& weights);

}  // namespace kvcodec
