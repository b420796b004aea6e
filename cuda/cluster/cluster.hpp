// CUDA implementation of selection by semantic clusters (lib/attention/selector.hpp, ClusterKV), for many
// queries at a time: scores of centroids, the best clusters within a budget of tokens, the ids of their
// tokens, and the tokens' rows one behind the other, all on the device. Ids are lib's, bit for bit.
//
// Clusters are not sorted: counting tokens by bits of their cluster's score finds the score at which the
// budget ends; tokens of better clusters are taken, of clusters with this score those of the lowest ids. Ids
// come out rising, the order in which rows are read best.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/attention/selector.hpp"
#include "lib/core/view.hpp"

namespace kvcodec::cuda {

/// kvcodec::ClusterIndex in device memory.
class DeviceClusterIndex {
 public:
  /// Copied. Throws Error(failed) without device memory.
  explicit DeviceClusterIndex(const kvcodec::ClusterIndex& index);
  ~DeviceClusterIndex();
  DeviceClusterIndex(DeviceClusterIndex&&) noexcept;
  DeviceClusterIndex& operator=(DeviceClusterIndex&&) noexcept;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// A group of queries that share a selection.
struct ClusterQuery {
  const DeviceClusterIndex* index = nullptr;
  uint64_t tokens = 0;              ///< that the queries see, the first ones of the document
  MatrixView<const float> queries;  ///< (n, dims), n >= 1
  Share by = Share::max;
  bool divided = true;  ///< by mean: false ranks by the sum of scores, as lib/pipeline/selection.hpp does
  size_t budget = 0;    ///< tokens at most
  uint64_t newest = 0;  ///< so many of the newest are taken anyway, and those that wait for a cluster
};

/// Rows of tokens in device memory: (tokens, width) of f32 or of 16 bits, packed.
class TokenRows {
 public:
  explicit TokenRows(MatrixView<const float> rows);
  explicit TokenRows(MatrixView<const uint16_t> rows);
  ~TokenRows();
  TokenRows(TokenRows&&) noexcept;
  TokenRows& operator=(TokenRows&&) noexcept;
  size_t tokens() const;
  size_t row_bytes() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// What a number of queries select, in device memory.
class ClusterSelection {
 public:
  /// Throws Error(failed) for shapes that do not fit, and Error(bad_input) for scores that are NaNs: of a
  /// query that is not finite.
  explicit ClusterSelection(std::span<const ClusterQuery> queries);
  ~ClusterSelection();
  ClusterSelection(ClusterSelection&&) noexcept;
  ClusterSelection& operator=(ClusterSelection&&) noexcept;

  size_t queries() const;
  /// The tokens that kept_anyway() keeps, and of those before the newest ones the best: by the scores of
  /// their clusters, of equal ones the lowest ids. Where the queries see all of a document, as
  /// kvcodec::ClusterSelector::select_shared. Tokens of the sink have infinite scores, tokens that wait
  /// waiting_score() among those seen.
  std::vector<Scored> tokens(size_t query, Order order = Order::by_score) const;
  /// Those of all queries.
  std::vector<std::vector<Scored>> tokens(Order order = Order::by_score) const;

  /// The rows of each query's tokens, by rising id, as they are in rows[query]: row_bytes each, without gaps.
  /// Throws Error(failed) for rows of fewer tokens than the query's.
  std::vector<std::vector<std::byte>> gather(std::span<const TokenRows* const> rows) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec::cuda
