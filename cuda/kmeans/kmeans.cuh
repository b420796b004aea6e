// Launchers of the kernels of kmeans.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

inline constexpr unsigned kPeakTile = 128;  ///< rows, and entries, of one tile of products
inline constexpr unsigned kRoughStep = 64;  ///< rough rows are padded to a multiple of so many elements

/// The rough form of rows: rough[i * padded + j] = f16(row[j] / factors[i]), zeros behind d, factors powers
/// of two; norms[i] >= |row|, and errors[i] >= |row - factor * rough|.
struct RoughRows {
  const float* exact = nullptr;  ///< (count, d)
  uint16_t* rough = nullptr;     ///< (count, padded)
  float* factors = nullptr;
  float* norms = nullptr;
  float* errors = nullptr;
  uint32_t count = 0, d = 0, padded = 0;
};
[[nodiscard]] Status run_make_rough(const RoughRows& rows, StreamHandle stream);

/// The two highest rough scores of one row and one tile of entries. The last 7 bits of best are the place of
/// its entry in the tile, those of second are undefined.
struct alignas(8) Peak {
  float best, second;
};

/// For each of some rows the entry of the highest score.
struct EntrySearch {
  RoughRows rows, entries;
  const float* bias = nullptr;  ///< of the entries; may be nullptr
  float* largest = nullptr;     ///< the largest of the entries' norms, errors and |bias|: 3, zeros at first
  Peak* peaks = nullptr;        ///< [row][tile of kPeakTile entries]
  uint32_t* ids = nullptr;      ///< of the rows
  float* scores = nullptr;      ///< exact ones
};
/// Fills `largest`, which the other two need.
[[nodiscard]] Status run_largest(const EntrySearch& search, StreamHandle stream);
/// Fills `peaks`, and from these ids and scores.
[[nodiscard]] Status run_peaks(const EntrySearch& search, StreamHandle stream);
[[nodiscard]] Status run_settle(const EntrySearch& search, StreamHandle stream);

/// A sort of rows by cluster, by counting. It is cut in `tiles` stretches of `tile_rows` rows, each counted by itself.
struct SortByCluster {
  uint32_t rows = 0, clusters = 0, tile_rows = 0, tiles = 0;
  const uint32_t* labels = nullptr;  ///< (rows): below clusters
  uint32_t* counts = nullptr;        ///< (counts_size()): for the work; zeros at first
  uint32_t* totals = nullptr;        ///< (clusters): for the work
  uint64_t* offsets = nullptr;       ///< (clusters + 1): prefix sums of the clusters' sizes
  uint32_t* sorted = nullptr;        ///< (rows): the rows of cluster 0, rising, then of cluster 1 ...

  SortByCluster(uint32_t all_rows, uint32_t all_clusters);
  size_t counts_size() const { return size_t{clusters} * tiles; }
};
[[nodiscard]] Status run_sort_by_cluster(const SortByCluster& sort, StreamHandle stream);

/// Rows, and their clusters, from a sort.
struct ClusteredRows {
  const float* rows = nullptr;  ///< of d floats
  uint32_t d = 0, clusters = 0;
  const uint64_t* offsets = nullptr;
  const uint32_t* sorted = nullptr;
};
/// means (clusters, d) of the rows of each cluster, in their order; clusters without rows are left alone.
[[nodiscard]] Status run_cluster_means(const ClusteredRows& rows, float* means, StreamHandle stream);
/// sums (clusters, d), in double, in that order; zeros for clusters without rows.
[[nodiscard]] Status run_cluster_sums(const ClusteredRows& rows, double* sums, StreamHandle stream);

}  // namespace kvcodec::cuda
