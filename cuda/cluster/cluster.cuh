// Launchers of the kernels of cluster.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

/// One selection.
struct ClusterSearch {
  const float* centroids = nullptr;   ///< (clusters, dims)
  const uint64_t* offsets = nullptr;  ///< (clusters + 1): where a cluster's tokens begin among ids
  const uint32_t* ids = nullptr;      ///< tokens of cluster 0, rising, then of cluster 1 ...
  const uint32_t* labels = nullptr;   ///< (tokens of the index): a token's cluster; undefined for the sink
  const float* queries = nullptr;     ///< (query_count, dims)
  uint32_t clusters = 0, dims = 0, query_count = 0;
  bool largest = true;             ///< of several queries' scores; otherwise their sum
  uint32_t tokens = 0;             ///< that the queries see
  uint32_t end = 0;                ///< of the index: tokens from here on have no cluster
  uint32_t first = 0, newest = 0;  ///< tokens that are taken anyway: KeptAnyway
  uint32_t budget = 0;             ///< tokens of clusters at most
};

/// Many selections, and their memory: `stride` scores, `words` words of bits and `room` ids each, enough
/// for any.
struct ClusterSearches {
  const ClusterSearch* each = nullptr;
  uint32_t count = 0, max_clusters = 0;
  float* scores = nullptr;  ///< [count][stride]: of clusters
  size_t stride = 0;
  uint32_t* limits =
      nullptr;  ///< [count][2]: clusters above the key are taken, of those of this key so many tokens
  uint32_t* bits =
      nullptr;  ///< [count][2][words]: tokens of clusters above, and of those at the limit; zeros before
  uint32_t words = 0;
  uint32_t* ids = nullptr;        ///< [count][room]: the answer, rising
  float* token_scores = nullptr;  ///< [count][room]: of their clusters; 0 for tokens that are taken anyway
  size_t room = 0;
  uint32_t* counts = nullptr;  ///< [count]
  uint32_t* nan = nullptr;     ///< becomes 1 if a score is NaN; 0 before
};
[[nodiscard]] Status run_select_clusters(const ClusterSearches& searches, StreamHandle stream);

}  // namespace kvcodec::cuda
