// The steps of a prefill on the CPU (llama.hpp): the forward pass, assembled by the configuration.
// Inside lib/model only.
#pragma once

#include <cmath>
#include <cstddef>
#include <memory>

#include "lib/core/view.hpp"
#include "lib/model/llama.hpp"
#include "lib/model/llama_weights.hpp"

namespace kvcodec {

/// Intermediate results that the backward pass of a layer with an MLP needs (cache_gradients.hpp), of all tokens
/// of a batch: (tokens, …) each, or empty where the model has no such part.
struct LayerTape {
  LayerTape(const ModelConfig& config, size_t tokens);
  static size_t floats_per_token(const ModelConfig& config);

  Matrix<float> raw_query, raw_key;  ///< before they are normalised
  Matrix<float> query;               ///< as attention takes it
  Matrix<float> log_sums;            ///< (tokens, num_q_heads): logarithms of its softmaxes' denominators
  Matrix<float> attended;            ///< the output of attention
  Matrix<float> mlp_input;           ///< hidden states that the MLP reads, before their norm
  Matrix<float> gate, up;            ///< in the MLP, before the activation
  Matrix<float> attention_branch, mlp_branch;  ///< outputs of both, before they are normalised
};

/// Steps that can be run again with a tape.
class TapedSteps : public PrefillSteps {
 public:
  /// Hidden states of all tokens, as they are now; a caller that writes others continues from those.
  virtual MatrixView<float> states() = 0;
  /// Keys and values of the present layer, past tokens and new ones.
  virtual PastRows cache() = 0;
  /// From now on finish() and project() also write to the tape, for layers with an MLP; nullptr: no more. With a
  /// tape hidden states after the layer are undefined.
  virtual void record(LayerTape* tape) = 0;
};

/// Both outlive the result.
std::unique_ptr<TapedSteps> start_on_cpu(const LlamaWeights& weights, const PrefillPlan& plan);

/// Factor for queries, so that q k / sqrt(head_dim) is the model's score.
inline float query_scale(const ModelConfig& config) {
  if (config.attention_scale == 0) return 1;
  return static_cast<float>(config.attention_scale * std::sqrt(static_cast<double>(config.head_dim)));
}

/// Floats that the steps hold: for each token of a chunk; for each token of the batch; for each position of the
/// longest document; for each thread.
size_t floats_per_chunk_row(const ModelConfig& config, const PrefillOptions& options);
size_t floats_per_token(const ModelConfig& config);
size_t floats_per_position(const ModelConfig& config);
size_t floats_per_thread(const ModelConfig& config);

/// Turns the output matrix's results into logits, in place: their scale and cap.
void finish_logits(const ModelConfig& config, MatrixView<float> logits);

}  // namespace kvcodec
