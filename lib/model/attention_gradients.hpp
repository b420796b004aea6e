// The backward pass of the attention of causal_attention.hpp: derivatives by queries, keys and values from
// those by its result. Inside lib/model only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"
#include "lib/model/config.hpp"
#include "lib/model/linear.hpp"
#include "lib/model/prefill_engine.hpp"

namespace kvcodec {

/// One layer's attention over all new tokens of one document, and the derivatives by its result. n new tokens, m past
/// and new ones.
struct AttentionDone {
  DocumentPlace document;              ///< the only one: its rows begin at 0, those of keys too
  int64_t window = 0;                  ///< as of causal_attention
  MatrixView<const float> query;       ///< (n, num_q_heads * head_dim)
  MatrixView<const float> key, value;  ///< (m, num_kv_heads * head_dim)
  MatrixView<const float> log_sums;    ///< (n, num_q_heads): logarithms of the sums of the softmaxes
  MatrixView<const float> out;         ///< like query: what attention gave
  MatrixView<const float> by_out;      ///< the derivatives by it
};

/// Scratch floats per thread that the two functions take.
size_t attention_gradient_scratch_floats(const ModelConfig& config);

/// Replaces `out` by the derivatives by queries, (n, num_q_heads * head_dim).
void gradients_by_query(const ModelConfig& config, const AttentionDone& done, MatrixView<float> out,
                        WorkerScratch& scratch);

/// Replaces keys and values, (k, num_kv_heads * head_dim) each, by the derivatives by the document's first k <= m.
void gradients_by_keys(const ModelConfig& config, const AttentionDone& done, MatrixView<float> keys,
                       MatrixView<float> values, WorkerScratch& scratch);

}  // namespace kvcodec
