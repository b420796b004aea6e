// Launchers of the kernels of kmeans.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

/// How a sort by counting is cut: `tiles` stretches of `tile_rows` rows, each counted by itself.
struct SortShape {
  uint32_t rows = 0, clusters = 0, tile_rows = 0, tiles = 0;
  size_t counts() const { return size_t{clusters} * tiles; }
};
SortShape sort_shape(uint32_t rows, uint32_t clusters);

/// offsets (clusters + 1): prefix sums of the clusters' sizes; sorted (rows): the rows of cluster 0, rising,
/// then of cluster 1 ... labels: below clusters. counts: shape.counts(), totals: clusters; for the work.
[[nodiscard]] Status run_sort_by_cluster(const SortShape& shape, const uint32_t* labels, uint32_t* counts,
                                         uint32_t* totals, uint64_t* offsets, uint32_t* sorted,
                                         StreamHandle stream);

/// sums[c * d ...] of rows sorted[offsets[c]] ..., in double, in this order; zeros for clusters without rows.
[[nodiscard]] Status run_cluster_sums(const float* rows, uint32_t d, const uint64_t* offsets,
                                      const uint32_t* sorted, uint32_t clusters, double* sums,
                                      StreamHandle stream);

}  // namespace kvcodec::cuda
