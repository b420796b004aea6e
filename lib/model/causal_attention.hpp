// Causal attention of a chunk of tokens over the keys and values computed so far, document by document, and its backward
// pass. Inside lib/model only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/core/view.hpp"
#include "lib/model/config.hpp"
#include "lib/model/linear.hpp"
#include "lib/model/llama.hpp"

namespace kvcodec {

/// One layer's attention for n rows of the batch from `first` on, each over the tokens of its own document up to itself.
struct CausalAttention {
  std::span<const DocumentPlace> documents;  ///< in order, covering all rows
  int64_t window = 0;                        ///< tokens that each sees, itself included; 0 = all
  std::span<const float> sinks = {};  ///< each query head's score that counts beside keys' scores; or empty
  /// Arithmetic of the two products. In bf16 queries, keys, values, and the weights of a softmax are rounded.
  Compute compute = Compute::f32;
  size_t first = 0;
  MatrixView<const float> query;  ///< (n, num_q_heads * head_dim)
  /// (past and new tokens of all documents, num_kv_heads * head_dim or value_dim), filled up to those of row first + n.
  MatrixView<const float> key, value;
  MatrixView<float> out;            ///< (n, num_q_heads * value_dim)
  MatrixView<float> log_sums = {};  ///< (n, num_q_heads): for the logarithm of each softmax's sum; or empty
};

/// Scratch floats per thread that causal_attention takes.
size_t attention_scratch_floats(const ModelConfig& config);

/// out = softmax(q k^T / sqrt(head_dim)) v, scores capped if the model says so.
/// Blocks that are masked altogether are skipped; the softmax is updated block of keys by block, so memory
/// does not grow with the document (Milakov and Gimelshein 2018; Dao et al. 2022). Blocks lie at fixed
/// positions of the document: chunks do not matter.
void causal_attention(const ModelConfig& config, const CausalAttention& attention, WorkerScratch& scratch);

/// Scratch floats per thread that the two functions below take.
size_t attention_gradient_scratch_floats(const ModelConfig& config);

/// Replaces `queries` by the derivatives of the result of causal_attention(), in f32 with all rows of one document, by
/// queries: (n, num_q_heads * head_dim); by_out, like out: the derivatives by that result.
void gradients_by_query(const ModelConfig& config, const CausalAttention& done,
                        MatrixView<const float> by_out, MatrixView<float> queries, WorkerScratch& scratch);

/// Replaces keys and values of by_past, (k, num_kv_heads * head_dim) each, by the derivatives by the document's first k ones.
void gradients_by_keys(const ModelConfig& config, const CausalAttention& done, MatrixView<const float> by_out,
                       const PastRows& by_past, WorkerScratch& scratch);

}  // namespace kvcodec
