// Launchers of the kernels of attention.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

enum class RowKind : uint8_t { f32, f16, bf16, two_bit };

inline constexpr unsigned kMaxDims = 256;
inline constexpr unsigned kMaxQueries = 8;     ///< that share one pass over the rows
inline constexpr unsigned kSplitTokens = 256;  ///< of one item of work

/// One head's keys and values. Floats: (tokens, dims). Two bits: levels (tokens, ceil(dims / 4)) and grids
/// (tokens, ceil(dims / 32)), the scale in the lower half and the zero in the upper, both f16; signs (tokens,
/// ceil(dims / 8)).
struct RowPointers {
  const void* keys = nullptr;
  const void* values = nullptr;
  const uint32_t* key_grids = nullptr;
  const uint32_t* value_grids = nullptr;
  const uint8_t* signs = nullptr;
};

/// Some tokens of one head for some queries.
struct AttentionItem {
  RowPointers rows;
  const uint32_t* ids = nullptr;  ///< nullptr: tokens first, first + 1, ...
  uint32_t first = 0, count = 0;  ///< count: 1 to kSplitTokens
  uint32_t query = 0;             ///< of the first one: a row of `queries`
};

/// Queries of a launch, times the scale of the logits, and for coded keys times their alpha: rows of dims
/// floats; shifts: one per query, added to its logits.
/// Of each item i and each of the `queries_each` queries q (1, 2, 4 or 8), writes its largest logit and its
/// sum of weights to states[(i * queries_each + q) * 2], [+ 1], and the weighted sum of values to sums[(i *
/// queries_each + q) * dims].
[[nodiscard]] Status run_attention_items(RowKind kind, const AttentionItem* items, size_t count,
                                         unsigned queries_each, unsigned dims, const float* queries,
                                         const float* shifts, float* states, float* sums,
                                         StreamHandle stream);

/// Which items make a result: items [first_item, end_item), query `query` of each.
struct AttentionResult {
  uint32_t first_item = 0, end_item = 0, query = 0;
};
/// out[r * dims]: zeros where there is no item.
[[nodiscard]] Status run_attention_join(const AttentionResult* results, size_t count, unsigned queries_each,
                                        unsigned dims, const float* states, const float* sums, float* out,
                                        StreamHandle stream);

}  // namespace kvcodec::cuda
