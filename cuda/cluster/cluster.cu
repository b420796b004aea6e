// Selection by clusters (lib/attention/selector.hpp).
#include "cuda/cluster/cluster.cuh"
#include "cuda/runtime/kernel.cuh"
#include "lib/linalg/ordered_key.hpp"

namespace kvcodec::cuda {

constexpr unsigned kClusterThreads = 256;
constexpr unsigned kClusterBins = kClusterThreads;  ///< 8 bits of a key at a time, a bin per thread
constexpr unsigned kScoredAhead = 8;   ///< elements of a row that a lane has on their way together
constexpr unsigned kHeldClusters = 8;  ///< of a thread, whose keys and sizes are read once
constexpr unsigned kWriteThreads = 1024;

namespace cluster_detail {

/// End of the tokens of a cluster that may be chosen: those before the newest ones, which are taken
/// anyway.
__device__ __forceinline__ uint64_t end_of(const ClusterSearch& search, unsigned cluster) {
  const uint32_t newest = search.tokens - search.newest;
  uint64_t low = search.offsets[cluster], high = search.offsets[cluster + 1];
  if (newest >= search.end) return high;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (search.ids[middle] < newest)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/// Elements lane, lane + 16 ... of a row, zeros behind it.
__device__ __forceinline__ void load_every_16th(const float* row, unsigned lane, unsigned dims,
                                                float (&out)[kScoredAhead]) {
#pragma unroll
  for (unsigned i = 0; i < kScoredAhead; ++i) out[i] = lane + i * 16 < dims ? row[lane + i * 16] : 0;
}

/// The bits of the tokens below `end` in a word of them.
__device__ __forceinline__ uint32_t bits_below(unsigned word, unsigned end) {
  if (end <= word * 32) return 0;
  return end - word * 32 >= 32 ? ~0u : (1u << (end - word * 32)) - 1;
}

}  // namespace cluster_detail

/// Half a warp per cluster. A product is that of lib/linalg: element i in lane i mod 16, products rounded
/// before they are added, the lanes as a tree.
__global__ void __launch_bounds__(kClusterThreads) score_clusters(ClusterSearches searches) {
  const ClusterSearch search = searches.each[blockIdx.y];
  const unsigned cluster = (blockIdx.x * kClusterThreads + threadIdx.x) / 16, lane = threadIdx.x % 16;
  const bool real = cluster < search.clusters;
  const float* const centroid = search.centroids + size_t{real ? cluster : 0} * search.dims;
  float shared = 0;
  bool none = false;
  if (search.clusters == 0) return;  // the whole block
  float of_centroid[kScoredAhead], of_query[kScoredAhead];
  cluster_detail::load_every_16th(centroid, lane, search.dims, of_centroid);
#pragma unroll 2
  for (unsigned q = 0; q < search.query_count; ++q) {
    const float* const query = search.queries + size_t{q} * search.dims;
    float sum = 0;
    cluster_detail::load_every_16th(query, lane, search.dims, of_query);
#pragma unroll
    for (unsigned i = 0; i < kScoredAhead; ++i) sum += of_query[i] * of_centroid[i];  // + 0 changes nothing
    for (unsigned j = lane + kScoredAhead * 16; j < search.dims; j += 16) sum += query[j] * centroid[j];
    sum = sum_of_lanes<16>(sum);
    shared = q == 0 ? sum : !search.largest ? shared + sum : sum > shared ? sum : shared;
    none |= sum != sum;
  }
  if (real && lane == 0) {
    searches.scores[blockIdx.y * searches.stride + cluster] = shared;
    if (none || shared != shared) *searches.nan = 1;
  }
}

/// A block per search: by eight bits of the keys at a time, the key at which the tokens of the clusters with
/// higher ones are as many as wanted, and how many are then still wanted.
__global__ void __launch_bounds__(kClusterThreads) limit_clusters(ClusterSearches searches) {
  KVCODEC_SHARED_ARRAY(uint32_t, bins, kClusterBins);
  KVCODEC_SHARED_ARRAY(uint32_t, sums, kClusterThreads / kWarp);
  KVCODEC_SHARED_ARRAY(uint32_t, found, 2);
  const ClusterSearch search = searches.each[blockIdx.x];
  const float* const scores = searches.scores + blockIdx.x * searches.stride;
  uint32_t* const limits = searches.limits + blockIdx.x * 2;
  const auto all = search.clusters == 0 ? 0u : static_cast<uint32_t>(search.offsets[search.clusters]);
  if (search.budget == 0 || search.budget >= all) {  // nothing, or all of them: no key is as low as 0
    if (threadIdx.x == 0) limits[0] = search.budget == 0 ? ~0u : 0, limits[1] = 0;
    return;  // the whole block
  }
  uint32_t keys[kHeldClusters], sizes[kHeldClusters];
  const auto load = [&](unsigned c, uint32_t& key, uint32_t& size) {
    key = unsigned_key(scores[c]);
    size = static_cast<uint32_t>(cluster_detail::end_of(search, c) - search.offsets[c]);
  };
#pragma unroll
  for (unsigned i = 0; i < kHeldClusters; ++i) {
    const unsigned c = threadIdx.x + i * kClusterThreads;
    keys[i] = sizes[i] = 0;
    if (c < search.clusters) load(c, keys[i], sizes[i]);
  }
  uint32_t prefix = 0, mask = 0, left = search.budget;
  for (unsigned shift = 24;; shift -= 8) {
    bins[threadIdx.x] = 0;
    __syncthreads();
    const auto count = [&](uint32_t key, uint32_t size) {
      if ((key & mask) == prefix && size != 0) atomicAdd(&bins[key >> shift & 255], size);
    };
#pragma unroll
    for (unsigned i = 0; i < kHeldClusters; ++i) count(keys[i], sizes[i]);
    for (unsigned c = threadIdx.x + kHeldClusters * kClusterThreads; c < search.clusters;
         c += kClusterThreads) {
      uint32_t key = 0, size = 0;
      load(c, key, size);
      count(key, size);
    }
    __syncthreads();
    // Bins from the top: a thread's is the one that holds the left-th token if those above are fewer.
    const unsigned bin = kClusterBins - 1 - threadIdx.x;
    const uint32_t own = bins[bin];
    uint32_t total = 0;
    const uint32_t before = prefix_sum(own, sums, total);
    if (mask == 0 && left >= total) {  // all that may be chosen
      if (threadIdx.x == 0) limits[0] = 0, limits[1] = 0;
      return;  // the whole block
    }
    if (before < left && left <= before + own) found[0] = bin, found[1] = left - before;  // one thread
    __syncthreads();
    prefix |= found[0] << shift, left = found[1];
    mask |= 255u << shift;
    if (shift == 0) break;
  }
  if (threadIdx.x == 0) limits[0] = prefix, limits[1] = left;
}

/// A warp per 32 clusters, a lane each to see whether it is chosen: most are not. It marks the tokens of those
/// that are, one after the other.
__global__ void __launch_bounds__(kClusterThreads) mark_tokens(ClusterSearches searches) {
  const ClusterSearch search = searches.each[blockIdx.y];
  const uint32_t limit = searches.limits[blockIdx.y * 2];
  const unsigned cluster = blockIdx.x * kClusterThreads + threadIdx.x, lane = threadIdx.x % kWarp;
  uint32_t key = 0;
  bool chosen = cluster < search.clusters;
  uint64_t begin = 0, end = 0;
  if (chosen) {
    key = unsigned_key(searches.scores[blockIdx.y * searches.stride + cluster]);
    chosen = key >= limit;
  }
  if (chosen) begin = search.offsets[cluster], end = cluster_detail::end_of(search, cluster);
  uint32_t* const above = searches.bits + size_t{blockIdx.y} * 2 * searches.words;
  for (unsigned left = __ballot_sync(kAllLanes, chosen); left != 0; left &= left - 1) {
    const int owner = __ffs(static_cast<int>(left)) - 1;
    const bool tied = __shfl_sync(kAllLanes, key, owner) == limit;
    const uint64_t to = __shfl_sync(kAllLanes, end, owner);
    uint32_t* const bits = above + (tied ? searches.words : 0);
    for (uint64_t i = __shfl_sync(kAllLanes, begin, owner) + lane; i < to; i += kWarp) {
      const uint32_t token = search.ids[i];
      atomicOr(&bits[token / 32], 1u << token % 32);
    }
  }
}

/// A block per search: writes the tokens that are marked, and those that are taken anyway, a word of bits per
/// thread at a time, then the scores of all of them.
__global__ void __launch_bounds__(kWriteThreads) write_tokens(ClusterSearches searches) {
  using cluster_detail::bits_below;
  KVCODEC_SHARED_ARRAY(uint32_t, sums, kWriteThreads / kWarp);
  const ClusterSearch search = searches.each[blockIdx.x];
  const uint32_t* const above = searches.bits + size_t{blockIdx.x} * 2 * searches.words;
  const uint32_t* const tied = above + searches.words;
  const float* const scores = searches.scores + blockIdx.x * searches.stride;
  uint32_t* const ids = searches.ids + blockIdx.x * searches.room;
  float* const token_scores = searches.token_scores + blockIdx.x * searches.room;
  const uint32_t wanted = searches.limits[blockIdx.x * 2 + 1], newest = search.tokens - search.newest;
  const unsigned words = (search.tokens + 31) / 32;
  uint32_t tied_before = 0, written = 0;
  for (unsigned first = 0; first < words; first += kWriteThreads) {
    const unsigned word = first + threadIdx.x;
    uint32_t take = word < words ? above[word] : 0;
    uint32_t of_limit = word < words ? tied[word] : 0;
    uint32_t total = 0;
    const uint32_t before = tied_before + prefix_sum(static_cast<uint32_t>(__popc(of_limit)), sums, total);
    tied_before += total;
    uint32_t kept = wanted > before ? wanted - before : 0;  // of this word's tokens at the limit, the first
    for (; of_limit != 0 && kept > 0; of_limit &= of_limit - 1, --kept) take |= of_limit & (~of_limit + 1);
    if (word < words)
      take |= bits_below(word, search.first) | (bits_below(word, search.tokens) & ~bits_below(word, newest));
    uint32_t place = written + prefix_sum(static_cast<uint32_t>(__popc(take)), sums, total);
    written += total;
    for (; take != 0; take &= take - 1, ++place)
      ids[place] = word * 32 + static_cast<unsigned>(__ffs(static_cast<int>(take))) - 1;
  }
  __syncthreads();  // the ids were written
  for (unsigned place = threadIdx.x; place < written; place += kWriteThreads) {
    const uint32_t token = ids[place];
    token_scores[place] = token < search.first || token >= search.end ? 0 : scores[search.labels[token]];
  }
  if (threadIdx.x == 0) searches.counts[blockIdx.x] = written;
}

// Launchers ---------------------------------------------------------------------------------------

Status run_select_clusters(const ClusterSearches& searches, StreamHandle stream) {
  const auto blocks = [&](unsigned clusters_of_a_block) {
    return dim3((searches.max_clusters + clusters_of_a_block - 1) / clusters_of_a_block, searches.count);
  };
  Status status = launch(score_clusters, blocks(kClusterThreads / 16), kClusterThreads, 0, stream, searches);
  if (status == 0) status = launch(limit_clusters, searches.count, kClusterThreads, 0, stream, searches);
  if (status == 0)
    status = launch(mark_tokens, blocks(kClusterThreads), kClusterThreads, 0, stream, searches);
  if (status == 0) status = launch(write_tokens, searches.count, kWriteThreads, 0, stream, searches);
  return status;
}

}  // namespace kvcodec::cuda
