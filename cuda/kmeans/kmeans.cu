// A stable sort by counting (sort_by_cluster of lib/kmeans). The rows are cut in stretches, a warp each: it
// counts, for each cluster, its rows; prefix sums over the stretches, then over the clusters, say where each
// stretch's rows of each cluster begin; and the warp goes over its rows again and puts them there. Nothing
// depends on who comes first.
#include "cuda/kmeans/kmeans.cuh"
#include "cuda/runtime/kernel.cuh"
#include "cuda/runtime/prefix_sum.cuh"
#include "cuda/runtime/row_sums.cuh"

namespace kvcodec::cuda {

constexpr unsigned kSortWarps = 4;  ///< stretches of a block
constexpr unsigned kSortThreads = 256;
constexpr unsigned kSumThreads = 128;  ///< of a cluster whose rows are added

/// Calls body(row, label, same) for the rows of this warp's stretch, 32 at a time, by all lanes; same: the
/// lanes with this label. Lanes without a row have a label that is none.
template <class Body>
__device__ __forceinline__ void for_stretch(const SortShape& shape, const uint32_t* labels, unsigned tile,
                                            Body&& body) {
  constexpr uint32_t kNone = ~0u;
  const unsigned begin = tile * shape.tile_rows;
  const unsigned end = shape.rows - begin < shape.tile_rows ? shape.rows : begin + shape.tile_rows;
  for (unsigned first = begin; first < end; first += kWarp) {
    const unsigned row = first + threadIdx.x % kWarp;
    const uint32_t label = row < end ? labels[row] : kNone;
    body(row, label, label != kNone, __match_any_sync(kAllLanes, label));
    __syncwarp();  // what one lane wrote the others read next
  }
}

/// counts[c * tiles + t] = rows of cluster c in stretch t; zeros before.
__global__ void __launch_bounds__(kSortWarps* kWarp)
    count_labels(SortShape shape, const uint32_t* labels, uint32_t* counts) {
  const unsigned tile = blockIdx.x * kSortWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (tile >= shape.tiles) return;  // a whole warp
  for_stretch(shape, labels, tile, [&](unsigned, uint32_t label, bool real, unsigned same) {
    if (real && static_cast<unsigned>(__ffs(static_cast<int>(same))) == lane + 1)
      counts[size_t{label} * shape.tiles + tile] += static_cast<uint32_t>(__popc(same));
  });
}

/// A block per cluster: its counts become their prefix sums, and totals[c] their sum.
__global__ void __launch_bounds__(kSortThreads)
    scan_stretches(SortShape shape, uint32_t* counts, uint32_t* totals) {
  KVCODEC_SHARED_ARRAY(uint32_t, sums, kSortThreads / kWarp);
  uint32_t* const own = counts + size_t{blockIdx.x} * shape.tiles;
  uint32_t before = 0;
  for (unsigned first = 0; first < shape.tiles; first += kSortThreads) {
    const unsigned tile = first + threadIdx.x;
    const uint32_t count = tile < shape.tiles ? own[tile] : 0;
    uint32_t total = 0;
    const uint32_t sum = prefix_sum(count, sums, total);
    if (tile < shape.tiles) own[tile] = before + sum;
    before += total;
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = before;
}

/// One block.
__global__ void __launch_bounds__(kSortThreads)
    scan_clusters(unsigned clusters, const uint32_t* totals, uint64_t* offsets) {
  KVCODEC_SHARED_ARRAY(uint64_t, sums, kSortThreads / kWarp);
  uint64_t before = 0;
  for (unsigned first = 0; first < clusters; first += kSortThreads) {
    const unsigned cluster = first + threadIdx.x;
    uint64_t total = 0;
    const uint64_t sum = prefix_sum(uint64_t{cluster < clusters ? totals[cluster] : 0}, sums, total);
    if (cluster < clusters) offsets[cluster] = before + sum;
    before += total;
  }
  if (threadIdx.x == 0) offsets[clusters] = before;
}

__global__ void __launch_bounds__(kSortWarps* kWarp)
    place_rows(SortShape shape, const uint32_t* labels, const uint64_t* offsets, uint32_t* places,
               uint32_t* sorted) {
  const unsigned tile = blockIdx.x * kSortWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (tile >= shape.tiles) return;  // a whole warp
  for_stretch(shape, labels, tile, [&](unsigned row, uint32_t label, bool real, unsigned same) {
    uint32_t* const place = places + size_t{real ? label : 0} * shape.tiles + tile;
    const uint32_t next = *place;
    __syncwarp();
    if (!real) return;
    const auto before = static_cast<uint32_t>(__popc(same & ((1u << lane) - 1)));
    sorted[offsets[label] + next + before] = row;
    if (before == 0) *place = next + static_cast<uint32_t>(__popc(same));
  });
}

/// A block per cluster, a thread per column.
__global__ void __launch_bounds__(kSumThreads)
    cluster_sums(const float* rows, uint32_t d, const uint64_t* offsets, const uint32_t* sorted,
                 double* sums) {
  const uint64_t first = offsets[blockIdx.x], end = offsets[blockIdx.x + 1];
  for (unsigned j = threadIdx.x; j < d; j += kSumThreads)
    sums[size_t{blockIdx.x} * d + j] = sum_of_rows(rows, d, j, sorted, first, end);
}

// Launchers ---------------------------------------------------------------------------------------

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
