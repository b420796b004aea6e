// Causal attention of a chunk of tokens over the keys and values computed so far, document by document.
// Inside lib/model only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/core/view.hpp"
#include "lib/model/config.hpp"
#include "lib/model/linear.hpp"
#include "lib/model/prefill_engine.hpp"

namespace kvcodec {

/// Scratch floats per thread that causal_attention takes.
size_t attention_scratch_floats(const ModelConfig& config);

/// out = softmax(q k^T / sqrt(head_dim)) v, scores capped if the model says so, for rows [first, first +
/// query.rows()) of the batch, each over the tokens of its own document up to itself, and no more than `window` of them
/// (0 = all). query: (n, num_q_heads * head_dim); out: (n, num_q_heads * value_dim). key, value: (past and new tokens of
/// all documents, num_kv_heads * head_dim or value_dim), filled up to those of row first + n. documents: in order,
/// covering all rows.
/// Blocks that are masked altogether are skipped; the softmax goes along by blocks of keys, so memory does
/// not grow with the document (Milakov and Gimelshein 2018; Dao et al. 2022). Blocks lie at fixed positions
/// of the document: chunks do not matter.
/// sinks: of each query head, a score that its softmax counts beside those of keys; or empty.
/// log_sums: (n, num_q_heads), where the logarithm of each softmax's sum goes; or empty.
/// compute: how the two products are made. In bf16 queries, keys, values, and the weights of a softmax are rounded.
void causal_attention(const ModelConfig& config, int64_t window, std::span<const float> sinks,
                      Compute compute, std::span<const DocumentPlace> documents, size_t first,
                      MatrixView<const float> query, MatrixView<const float> key,
                      MatrixView<const float> value, MatrixView<float> out, WorkerScratch& scratch,
                      MatrixView<float> log_sums = {});

}  // namespace kvcodec
