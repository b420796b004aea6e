// Launchers of the kernels of kmeans.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

inline constexpr unsigned kPeakTile = 128;  ///< rows, and entries, of one tile of products
inline constexpr unsigned kRoughStep = 64;  ///< rough rows are padded to a multiple of so many elements

/// The rough form of rows: rough[i * padded + j] = f16(row[j] / factors[i]), zeros behind d, factors powers
/// of two; norms[i] >= |row|, and errors[i] >= |row - what rough and factor say|.
struct RoughRows {
  const float* exact = nullptr;  ///< (count, d)
  uint16_t* rough = nullptr;     ///< (count, padded)
  float* factors = nullptr;
  float* norms = nullptr;
  float* errors = nullptr;
  uint32_t count = 0, d = 0, padded = 0;
};
[[nodiscard]] Status run_make_rough(const RoughRows& rows, StreamHandle stream);

/// largest[0] = the largest of the norms, [1] of the errors, [2] of |bias| (0 without). largest must be
/// zeros.
[[nodiscard]] Status run_largest(const RoughRows& rows, const float* bias, float* largest,
                                 StreamHandle stream);

/// The two highest rough scores of one row and one tile of entries. The last 7 bits of best are the place of
/// its entry in the tile, those of second are anything.
struct alignas(8) Peak {
  float best, second;
};
/// peaks[row * tiles + t] for all tiles of kPeakTile entries. bias may be nullptr.
[[nodiscard]] Status run_peaks(const RoughRows& rows, const RoughRows& entries, const float* bias,
                               Peak* peaks, StreamHandle stream);

/// The entry of the highest exact score of each row, and that score. largest: of the entries.
[[nodiscard]] Status run_settle(const RoughRows& rows, const RoughRows& entries, const float* bias,
                                const float* largest, const Peak* peaks, uint32_t* ids, float* scores,
                                StreamHandle stream);

/// means[c * d ...] of rows ids[offsets[c]] ... in this order; clusters without rows are left alone.
[[nodiscard]] Status run_means(const float* rows, uint32_t d, const uint64_t* offsets, const uint32_t* ids,
                               uint32_t clusters, float* means, StreamHandle stream);

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
