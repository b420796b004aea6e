#include "cuda/kmeans/kmeans.cuh"
#include "cuda/kmeans/kmeans_kernels.cuh"

namespace kvcodec::cuda {

SortShape sort_shape(uint32_t rows, uint32_t clusters) {
  // So few rows that many warps have work, so many that the counts, of which there are at most 2^24, are
  // worth it.
  constexpr uint32_t kRows = 1024, kCounts = 1 << 24;
  uint32_t tiles = rows / kRows + (rows % kRows != 0);
  const uint32_t most = clusters < kCounts ? kCounts / clusters : 1;
  if (tiles > most) tiles = most;
  if (tiles == 0) tiles = 1;
  const uint32_t tile_rows = rows / tiles + (rows % tiles != 0);
  // Cut in stretches of so many, there may be fewer of them; none of them is empty.
  return {rows, clusters, tile_rows, tile_rows == 0 ? 0 : rows / tile_rows + (rows % tile_rows != 0)};
}

Status run_sort_by_cluster(const SortShape& shape, const uint32_t* labels, uint32_t* counts, uint32_t* totals,
                           uint64_t* offsets, uint32_t* sorted, StreamHandle stream) {
  const unsigned blocks = shape.tiles / kSortWarps + (shape.tiles % kSortWarps != 0);
  Status status = launch(count_labels, blocks, kSortWarps * kWarp, 0, stream, shape, labels, counts);
  if (status == 0)
    status = launch(scan_stretches, shape.clusters, kSortThreads, 0, stream, shape, counts, totals);
  if (status == 0)
    status = launch(scan_clusters, 1, kSortThreads, 0, stream, shape.clusters,
                    static_cast<const uint32_t*>(totals), offsets);
  if (status == 0)
    status = launch(place_rows, blocks, kSortWarps * kWarp, 0, stream, shape, labels,
                    static_cast<const uint64_t*>(offsets), counts, sorted);
  return status;
}

Status run_cluster_sums(const float* rows, uint32_t d, const uint64_t* offsets, const uint32_t* sorted,
                        uint32_t clusters, double* sums, StreamHandle stream) {
  return launch(cluster_sums, clusters, kSumThreads, 0, stream, rows, d, offsets, sorted, sums);
}

}  // namespace kvcodec::cuda
