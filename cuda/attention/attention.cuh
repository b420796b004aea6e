// Launchers of the kernels of attention.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

inline constexpr unsigned kMaxDims = 256;
inline constexpr unsigned kDimsTogether =
    8;  ///< dims are a multiple of so many, with zeros in rows that have less
inline constexpr unsigned kMaxQueries = 8;     ///< that share one pass over the rows
inline constexpr unsigned kSplitTokens = 256;  ///< of one item of work

/// Some tokens of one head for some queries.
struct AttentionItem {
  const float* keys = nullptr;  ///< (tokens, dims)
  const float* values = nullptr;
  const uint32_t* ids = nullptr;  ///< nullptr: tokens first, first + 1, ...
  uint32_t first = 0, count = 0;  ///< count: 1 to kSplitTokens
  uint32_t query = 0;             ///< of the first one: a row of `queries`
};

/// Items, and their results: of each item i and each of its queries q its largest logit and its sum of weights at
/// states[(i * queries_each + q) * 2] and [+ 1], and the weighted sum of values at sums[(i * queries_each + q) * dims].
struct AttentionItems {
  const AttentionItem* items = nullptr;
  size_t count = 0;
  unsigned queries_each = 1;  ///< 1, 2, 4 or 8
  unsigned dims = 0;
  const float* queries = nullptr;  ///< rows of dims floats, times the scale of the logits
  float* states = nullptr;
  float* sums = nullptr;
};
/// Fills states and sums.
[[nodiscard]] Status run_attention_items(const AttentionItems& items, StreamHandle stream);

/// The items of a result: items [first_item, end_item), query `query` of each.
struct AttentionResult {
  uint32_t first_item = 0, end_item = 0, query = 0;
};
/// out[r * dims]: zeros where there is no item.
[[nodiscard]] Status run_attention_join(const AttentionItems& items, const AttentionResult* results,
                                        size_t count, float* out, StreamHandle stream);

}  // namespace kvcodec::cuda
