#include "cuda/cluster/cluster.cuh"
#include "cuda/cluster/cluster_kernels.cuh"

namespace kvcodec::cuda {

Status run_select_clusters(const ClusterSearches& searches, StreamHandle stream) {
  const auto blocks = [&](unsigned clusters_of_a_block) {
    return dim3((searches.most_clusters + clusters_of_a_block - 1) / clusters_of_a_block, searches.count);
  };
  Status status = launch(score_clusters, blocks(kClusterThreads / 16), kClusterThreads, 0, stream, searches);
  if (status == 0) status = launch(limit_clusters, searches.count, kClusterThreads, 0, stream, searches);
  if (status == 0)
    status = launch(mark_tokens, blocks(kClusterThreads / kWarp), kClusterThreads, 0, stream, searches);
  if (status == 0) status = launch(write_tokens, searches.count, kClusterThreads, 0, stream, searches);
  return status;
}

Status run_gather(const GatherTask* tasks, uint32_t count, uint64_t most_bytes, StreamHandle stream) {
  // Four pieces of 16 bytes for each thread, so that loads are on their way together.
  constexpr uint64_t kBytes = kClusterThreads * 64, kMostBlocks = 1024;
  const uint64_t blocks = (most_bytes + kBytes - 1) / kBytes;
  return launch(gather_rows, dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), count),
                kClusterThreads, 0, stream, tasks);
}

}  // namespace kvcodec::cuda
