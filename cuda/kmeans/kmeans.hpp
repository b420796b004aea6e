// CUDA implementation of lib/kmeans/kmeans.hpp, and of the search of lib/linalg/nearest.hpp: the nearest of k entries to each
// of n rows. Assignments, the sort of rows by cluster and means are computed on the device, from rows that are copied there
// once. The result of k-means is lib's, bit for bit: it is lib's own loop over an engine that gives the same bits.
//
// Ids and scores are lib's, bit for bit. All products are computed roughly on the matrix units, in f16 with
// sums in f32, and of each row and each 128 entries only the best, its id and the second best score are kept.
// A bound on the error by Cauchy and Schwarz,
//   |<x, e> - <x', e'>| <= |x - x'| |e| + |x'| |e - e'| + the roundings of the sums,
// leaves the candidates, which are scored exactly, as lib does. Rows and entries are scaled by powers of two for f16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kmeans/kmeans.cuh"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/view.hpp"
#include "lib/kmeans/kmeans.hpp"

namespace kvcodec::cuda {

/// Rows in device memory, ready for any number of searches.
class DeviceMatrix {
 public:
  /// (n, d), finite, copied. Throws Error(failed) for d = 0, d above 2^15 or n above 2^31.
  explicit DeviceMatrix(MatrixView<const float> rows);
  size_t rows() const { return all_.count; }
  size_t cols() const { return all_.d; }
  /// (rows, cols) in device memory, for launches.
  const float* data() const { return all_.exact; }
  /// Rows [first, first + some), for launches.
  RoughRows rough(size_t first, size_t some) const;

 private:
  RoughRows all_;
  DeviceBuffer<float> exact_, factors_, norms_, errors_;
  DeviceBuffer<uint16_t> rough_;
};

/// As kvcodec::ProductSearch::best. bias: one per entry, or empty; scores: one per row, or
/// empty. Throws Error(failed) if there is no entry or shapes do not fit.
void best_products(const DeviceMatrix& rows, const DeviceMatrix& entries, std::span<const float> bias,
                   std::span<uint32_t> ids, std::span<float> scores);

/// As kvcodec::kmeans.
std::vector<Clustering> kmeans(std::span<const KmeansTask> tasks, const KmeansOptions& options,
                               const Progress& progress = {});

/// kvcodec::RowsByCluster in device memory.
class RowsByCluster {
 public:
  /// As kvcodec::sort_by_cluster. Throws Error(failed) for labels that are not below `clusters`, and for 2^32
  /// of either.
  RowsByCluster(std::span<const uint32_t> labels, size_t clusters);

  size_t clusters() const { return offsets_.size() - 1; }
  /// (clusters + 1)
  void read_offsets(std::span<uint64_t> offsets) const;
  kvcodec::RowsByCluster read() const { return {downloaded(offsets_, stream_), downloaded(rows_, stream_)}; }

  /// means[c] = the mean of the rows of cluster c, as kvcodec::mean_of; means of empty clusters stay.
  /// rows: as many as there were labels.
  void means_of(const DeviceMatrix& rows, MatrixView<float> means) const;
  /// sums[c] = the sum of the rows of cluster c, in double, in their order; zeros for clusters without any.
  void sums_of(const DeviceMatrix& rows, MatrixView<double> sums) const;

 private:
  template <class T>
  void fill(const DeviceMatrix& rows, MatrixView<T> totals,
            Status (*launcher)(const ClusteredRows&, T*, StreamHandle)) const;

  Stream stream_;
  DeviceBuffer<uint64_t> offsets_;
  DeviceBuffer<uint32_t> rows_;
};

}  // namespace kvcodec::cuda
