// Attention over chosen tokens of a document, from any codec: only they are fetched and decoded. This is what selections
// are for (ClusterKV; Self-Indexing KVCache).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/attention/attention.hpp"
#include "lib/codec/document_view.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// Queries of one document, of all layers of a group, and the tokens that each looks at.
struct ChosenQueries {
  int q_heads = 0;               ///< per layer, a multiple of the group's heads
  MatrixView<const float> rows;  ///< (n, layers * q_heads * head_dim)
  size_t selections = 0;         ///< per query and layer: the group's heads, or q_heads
  /// (n, layers * selections), row by row; each rises. Query head h of a layer has selection h / (q_heads /
  /// selections).
  std::span<const std::vector<uint32_t>> tokens;
};

/// out = softmax(q k^T / sqrt(head_dim)) v of every query head over its tokens; zeros where it has none. out:
/// like queries.rows. Decodes each token that any of the queries looks at, once. The number of threads does
/// not change the result; the SIMD level changes it only where it changes what the codec decodes. Throws
/// Error(failed) for shapes that do not fit. engine: attends in place of the CPU, with results that differ by
/// rounding; or nullptr.
void attend_chosen(const DocumentView& keys, const DocumentView& values, const ChosenQueries& queries,
                   MatrixView<float> out, const AttentionEngine* engine = nullptr);

/// Queries to ask attend_chosen at a time: so many share what they decode, and memory holds the tokens of
/// all.
inline constexpr size_t kChosenBatch = 32;

}  // namespace kvcodec
