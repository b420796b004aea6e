// CUDA implementation of selection by semantic clusters (lib/attention/selector.hpp, ClusterKV), for many
// queries at a time: scores of centroids, the best clusters within a budget of tokens, and the ids of their tokens, all on
// the device. Ids are lib's, bit for bit.
//
// Clusters are not sorted: counting tokens by bits of their cluster's score finds the score at which the
// budget ends; tokens of better clusters are taken, of clusters with this score those of the lowest ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/runtime/runtime.hpp"
#include "lib/attention/selector.hpp"

namespace kvcodec::cuda {

/// kvcodec::ClusterIndex in device memory.
struct DeviceClusterIndex {
  /// Copied. Throws Error(failed) without device memory.
  explicit DeviceClusterIndex(const kvcodec::ClusterIndex& index);

  size_t dims, clusters;
  uint64_t sink, end;
  DeviceBuffer<float> centroids;
  DeviceBuffer<uint64_t> offsets;
  DeviceBuffer<uint32_t> ids, labels;
};

/// Returns for each choice the tokens that kept_anyway() keeps, and the best of those before the newest ones. Tokens are
/// ranked by the score that ClusterSelector gives their cluster, equal ones by id, the lowest first. largest: that is the
/// largest of a choice's queries, otherwise their sum, and the returned scores are means. document: number of tokens.
/// `sink`, `heavy` and `unscored` of choices are ignored. Throws Error(failed) for shapes that do not fit, and
/// Error(bad_input) for NaN scores, which come from a query that is not finite.
std::vector<std::vector<Scored>> select_tokens(const DeviceClusterIndex& index, uint64_t document,
                                               std::span<const TokenChoice> choices, bool largest);

}  // namespace kvcodec::cuda
