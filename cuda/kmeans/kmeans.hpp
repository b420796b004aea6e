// CUDA implementation of lib/kmeans/kmeans.hpp: assignments, the sort of rows by cluster and means are computed on
// the device, from rows that are copied there once. The result is lib's, bit for bit: it is lib's own loop
// over an engine that gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/kmeans/nearest.hpp"
#include "lib/core/progress.hpp"
#include "lib/kmeans/kmeans.hpp"

namespace kvcodec::cuda {

/// As kvcodec::kmeans.
std::vector<Clustering> kmeans(std::span<const KmeansTask> tasks, const KmeansOptions& options,
                               const Progress& progress = {});

/// kvcodec::RowsByCluster in device memory.
class RowsByCluster {
 public:
  /// As kvcodec::sort_by_cluster. Throws Error(failed) for labels that are not below `clusters`, and for 2^32
  /// of either.
  RowsByCluster(std::span<const uint32_t> labels, size_t clusters);
  ~RowsByCluster();
  RowsByCluster(RowsByCluster&&) noexcept;
  RowsByCluster& operator=(RowsByCluster&&) noexcept;

  size_t clusters() const;
  /// (clusters + 1)
  void read_offsets(std::span<uint64_t> offsets) const;
  kvcodec::RowsByCluster read() const;

  /// means[c] = the mean of the rows of cluster c, as kvcodec::mean_of; means without any are left alone.
  /// rows: as many as there were labels.
  void means_of(const DeviceMatrix& rows, MatrixView<float> means) const;
  /// sums[c] = the sum of the rows of cluster c, in double, in their order; zeros for clusters without any.
  void sums_of(const DeviceMatrix& rows, MatrixView<double> sums) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec::cuda
