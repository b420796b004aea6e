// The steps of a prefill on the CPU (prefill_engine.hpp): the forward pass, assembled from what the configuration
// says of its parts. Inside lib/model only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lib/core/view.hpp"
#include "lib/model/llama_weights.hpp"
#include "lib/model/prefill_engine.hpp"

namespace kvcodec {

/// Both outlive the result.
std::unique_ptr<PrefillSteps> start_on_cpu(const LlamaWeights& weights, const PrefillPlan& plan);

/// Floats that the steps hold: for each token of a chunk; for each token of the batch; for each position of the
/// longest document; for each thread.
size_t floats_per_chunk_row(const ModelConfig& config, bool before_rope);
size_t floats_per_token(const ModelConfig& config);
size_t floats_per_position(const ModelConfig& config);
size_t floats_per_thread(const ModelConfig& config);

/// Makes logits, in place, of what the output matrix gives: their scale and cap.
void finish_logits(const ModelConfig& config, MatrixView<float> logits);

}  // namespace kvcodec
