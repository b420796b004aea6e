// Codebooks of sign codes, and scores (lib/selfindex).
#include "cuda/runtime/kernel.cuh"
#include "cuda/selfindex/signvq.cuh"
#include "lib/selfindex/codebook_entry.hpp"

namespace kvcodec::cuda {

// Codebooks -----------------------------------------------------------------------------------

/// Rows that a warp takes at a time, while the next so many are under way. There are few warps, a piece of tokens
/// being one's: a row's sums depend on those of the last, so what can be had is many loads under way, and few
/// instructions, none of them a branch, from row to row (there were 40, in 165 cycles).
constexpr unsigned kSignAhead = 32;

/// Data of a warp: sums and counts of its 32 dimensions in shared memory, a column to each lane, so that there
/// are no bank conflicts beyond the two halves of a double. Signs are as the vote gives them, the first dimension
/// the lowest bit of a group's four; in stored codes it is the highest.
struct SignColumn {
  double* sums;      ///< [16][kWarp]
  uint32_t* counts;  ///< [16][8]: a group's four lanes each count 1
  unsigned shift;    ///< of the group's bits

  __device__ __forceinline__ unsigned group_of(unsigned signs) const { return signs >> shift & 15; }
  __device__ __forceinline__ void count(unsigned group) const {
    atomicAdd(&counts[group * 8], 1u);  // nobody waits for it
  }
  __device__ __forceinline__ void add(unsigned signs, float value) const {
    const unsigned group = group_of(signs);
    count(group);
    sums[group * kWarp] += static_cast<double>(value);
  }
  /// The same for two rows, whose sums are on their way together.
  __device__ __forceinline__ void add(unsigned signs, float value, unsigned signs_after,
                                      float value_after) const {
    const unsigned group = group_of(signs), group_after = group_of(signs_after);
    count(group), count(group_after);
    double sum = sums[group * kWarp], sum_after = sums[group_after * kWarp];
    sum += static_cast<double>(value);
    if (group_after == group) sum_after = sum;
    sum_after += static_cast<double>(value_after);
    sums[group * kWarp] = sum;
    sums[group_after * kWarp] = sum_after;
  }
};

/// A warp takes 32 dimensions of one head through one piece of tokens: a lane is a dimension. The vote of a
/// row's signs has its codes, and each lane adds its value to the sum of its group's code, in the order of the
/// tokens, as lib does. It is a block of its own, so that the compiler knows that no lane goes its own way.
__global__ void __launch_bounds__(kWarp) sign_sums(SignSums all) {
  KVCODEC_SHARED_ARRAY(double, shared_sums, 16 * kWarp);
  KVCODEC_SHARED_ARRAY(uint32_t, shared_counts, 16 * 8);
  const unsigned lane = threadIdx.x;
  const size_t slices = (all.dims + kWarp - 1) / kWarp;
  const size_t slice = blockIdx.x % slices, head = blockIdx.x / slices % all.heads,
               piece = blockIdx.x / slices / all.heads;
  const size_t dim = slice * kWarp + lane;
  const bool real = dim < all.dims;
  const size_t first = piece * kSummedTogether, left = all.tokens - first;
  const auto count = static_cast<unsigned>(left < kSummedTogether ? left : kSummedTogether);

  const SignColumn column{shared_sums + lane, shared_counts + lane / 4, lane / 4 * 4};
  for (unsigned code = 0; code < 16; ++code) {
    column.sums[code * kWarp] = 0;
    if (lane % 4 == 0) column.counts[code * 8] = 0;
  }
  __syncwarp();
  // Lanes beyond the last dimension have that one's values, and no signs.
  const size_t stride = all.heads * all.dims;
  const float* const values = all.rows + first * stride + head * all.dims + (real ? dim : all.dims - 1);
  const auto signs_of = [&](float value) { return __ballot_sync(kAllLanes, real && value >= 0); };
  const auto load = [&](float(&to)[kSignAhead], unsigned token) {
    const float* from = values + token * stride;
#pragma unroll
    for (unsigned i = 0; i < kSignAhead; ++i, from += stride) to[i] = *from;
  };
  const unsigned whole = count / kSignAhead * kSignAhead;
  float ahead[kSignAhead], next[kSignAhead];
  if (whole > 0) load(ahead, 0);
  for (unsigned token = 0; token < whole; token += kSignAhead) {
    load(next, token + kSignAhead < whole ? token + kSignAhead : token);  // the last ones: once more
#pragma unroll
    for (unsigned i = 0; i < kSignAhead; i += 2)
      column.add(signs_of(ahead[i]), ahead[i], signs_of(ahead[i + 1]), ahead[i + 1]);
#pragma unroll
    for (unsigned i = 0; i < kSignAhead; ++i) ahead[i] = next[i];
  }
  for (unsigned token = whole; token < count; ++token) {
    const float value = values[token * stride];
    column.add(signs_of(value), value);
  }
  __syncwarp();
  const size_t part = head * all.pieces() + piece;
  const auto stored = [](unsigned group) { return __brev(group) >> 28; };
  if (real)
    for (unsigned group = 0; group < 16; ++group)
      all.sums[(part * all.dims + dim) * 16 + stored(group)] = column.sums[group * kWarp];
  if (real && lane % 4 == 0)
    for (unsigned group = 0; group < 16; ++group)
      all.counts[(part * (all.dims / 4) + dim / 4) * 16 + stored(group)] = column.counts[group * 8] / 4;
}

/// A thread per head and dimension.
__global__ void sign_codebooks(SignSums all, float* centroids) {
  const size_t item = size_t{blockIdx.x} * blockDim.x + threadIdx.x, dims = all.dims, pieces = all.pieces();
  if (item >= all.heads * dims) return;
  const size_t head = item / dims, dim = item % dims;
  double total[16] = {};
  uint64_t count[16] = {};
  for (size_t piece = 0; piece < pieces; ++piece) {
    const size_t part = head * pieces + piece;
#pragma unroll
    for (unsigned code = 0; code < 16; ++code) {
      total[code] += all.sums[(part * dims + dim) * 16 + code];
      count[code] += all.counts[(part * (dims / 4) + dim / 4) * 16 + code];
    }
  }
  double magnitude = 0;
  uint64_t tokens = 0;
#pragma unroll
  for (unsigned code = 0; code < 16; ++code) {
    magnitude += fabs(total[code]);
    tokens += count[code];
  }
#pragma unroll
  for (unsigned code = 0; code < 16; ++code)
    centroids[item * 16 + code] =
        codebook_entry(code, static_cast<unsigned>(dim % 4), total[code], count[code], magnitude, tokens);
}

// Scores -------------------------------------------------------------------------------------------

constexpr unsigned kScoreThreads = 256;
constexpr unsigned kScoreTokens = 4;  ///< of a thread: independent chains of additions

/// A table's entries of kTogether queries side by side.
template <unsigned kTogether>
struct alignas(kTogether * sizeof(float)) ScoreEntry {
  float of[kTogether];
};

/// The entry of the code in bits [shift, shift + 4) of a word, by its offset in bytes: a shift and a mask.
template <unsigned kTogether>
__device__ __forceinline__ ScoreEntry<kTogether> entry_of(const ScoreEntry<kTogether>* group, unsigned word,
                                                          unsigned shift) {
  constexpr unsigned kSizeBits = kTogether == 1 ? 2 : 3;
  static_assert(sizeof(ScoreEntry<kTogether>) == 1 << kSizeBits);
  const unsigned offset = shift < kSizeBits ? word << (kSizeBits - shift) : word >> (shift - kSizeBits);
  return *reinterpret_cast<const ScoreEntry<kTogether>*>(reinterpret_cast<const unsigned char*>(group) +
                                                         (offset & (15u << kSizeBits)));
}

/// Adds the entries of the byte from bit `shift` on of each token's word, in the order of the groups; table:
/// of the first.
template <unsigned kTogether>
__device__ __forceinline__ void add_entries(float (&sums)[kScoreTokens][kTogether],
                                            const ScoreEntry<kTogether>* table,
                                            const unsigned (&words)[kScoreTokens], unsigned shift) {
  ScoreEntry<kTogether> first[kScoreTokens], second[kScoreTokens];
#pragma unroll
  for (unsigned i = 0; i < kScoreTokens; ++i) {
    first[i] = entry_of(table, words[i], shift + 4);
    second[i] = entry_of(table + 16, words[i], shift);
  }
#pragma unroll
  for (unsigned i = 0; i < kScoreTokens; ++i)
#pragma unroll
    for (unsigned q = 0; q < kTogether; ++q) {
      sums[i][q] += first[i].of[q];
      sums[i][q] += second[i].of[q];
    }
}

/// A block scores kScoreThreads * kScoreTokens tokens of kTogether queries of the same keys, their tables in
/// shared memory; the last may have fewer queries. Finding an entry
/// costs more than reading and adding it: for two queries it is done once, and their 16 entries for a group
/// fill the banks just once.
template <unsigned kTogether>
__global__ void __launch_bounds__(kScoreThreads) sign_scores(SignScores all) {
  auto* table = dynamic_shared<ScoreEntry<kTogether>>();
  const size_t query = size_t{blockIdx.y} * kTogether;
  const SignKeys keys = all.keys[query];
  const unsigned groups = all.groups, row_bytes = all.row_bytes;
#pragma unroll
  for (unsigned q = 0; q < kTogether; ++q)
    for (unsigned i = threadIdx.x; i < row_bytes * 32; i += kScoreThreads)  // zeros for a group that is none
      table[i].of[q] =
          query + q < all.queries && i < groups * 16 ? all.tables[(query + q) * groups * 16 + i] : 0.0f;
  __syncthreads();
  const size_t first = size_t{blockIdx.x} * (kScoreThreads * kScoreTokens) + threadIdx.x;
  float sums[kScoreTokens][kTogether] = {};
  for (unsigned from = 0; from < row_bytes; from += 16) {
    uint4 packed[kScoreTokens];
#pragma unroll
    for (unsigned i = 0; i < kScoreTokens; ++i) {
      const size_t token = first + i * kScoreThreads;
      packed[i] = token < keys.tokens ? *reinterpret_cast<const uint4*>(keys.codes + token * row_bytes + from)
                                      : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (unsigned b = 0; b < 16; ++b) {
      unsigned words[kScoreTokens];
#pragma unroll
      for (unsigned i = 0; i < kScoreTokens; ++i)
        words[i] = b < 4 ? packed[i].x : b < 8 ? packed[i].y : b < 12 ? packed[i].z : packed[i].w;
      add_entries(sums, table + (from + b) * 32, words, b % 4 * 8);
    }
  }
#pragma unroll
  for (unsigned i = 0; i < kScoreTokens; ++i) {
    const size_t token = first + i * kScoreThreads;
#pragma unroll
    for (unsigned q = 0; q < kTogether; ++q)
      if (token < keys.tokens && query + q < all.queries)
        all.scores[(query + q) * all.score_stride + token] = sums[i][q];
  }
}

// Launchers ---------------------------------------------------------------------------------------

Status run_sign_codebooks(const SignSums& all, float* centroids, StreamHandle stream) {
  constexpr unsigned kThreads = 128;
  const size_t items = all.heads * divide_up(all.dims, kWarp) * all.pieces();
  const Status status = launch(sign_sums, static_cast<unsigned>(items), kWarp, 0, stream, all);
  if (status != 0) return status;
  return launch(sign_codebooks, divide_up(all.heads * all.dims, kThreads), kThreads, 0, stream, all,
                centroids);
}

Status run_sign_scores(const SignScores& all, StreamHandle stream) {
  const unsigned together = all.in_pairs ? 2 : 1;
  const dim3 grid(divide_up(all.max_tokens, kScoreThreads * kScoreTokens), divide_up(all.queries, together));
  const auto kernel = all.in_pairs ? sign_scores<2> : sign_scores<1>;
  return launch(kernel, grid, kScoreThreads, together * all.row_bytes * 32 * sizeof(float), stream, all);
}

}  // namespace kvcodec::cuda
