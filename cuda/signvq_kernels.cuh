// Sign codes, codebook sums, scores and selection (lib/signvq, lib/linalg/topk.hpp).
#pragma once

#include "cuda/kernel.cuh"
#include "cuda/prefix_sum.cuh"
#include "cuda/signvq.cuh"
#include "lib/linalg/ordered_key.hpp"
#include "lib/signvq/codebook_entry.hpp"

namespace kvcodec::cuda {

// Codes and sums -----------------------------------------------------------------------------------

/// A warp takes 32 dimensions of one head through one piece of tokens: a lane is a dimension. The vote of a
/// row's signs is its codes, and each lane adds its value to the sum of its group's code, in the order of the
/// tokens, as lib does. The sums are a column of shared memory per lane, so there are no bank conflicts
/// beyond the two halves of a double.
inline constexpr unsigned kSignWarps = 4;
/// Rows that a lane has under way: the sums of one row depend on those of the last, the loads do not.
inline constexpr unsigned kSignAhead = 8;

__global__ void __launch_bounds__(kSignWarps* kWarp)
    sign_sums(const float* rows, SignShape shape, uint8_t* codes, double* all_sums, uint32_t* all_counts) {
  KVCODEC_SHARED_ARRAY(double, shared_sums, kSignWarps * 16 * kWarp);
  KVCODEC_SHARED_ARRAY(uint32_t, shared_counts, kSignWarps * 16 * 8);
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const size_t slices = (shape.dims + kWarp - 1) / kWarp;
  const size_t item = size_t{blockIdx.x} * kSignWarps + warp;
  const size_t pieces = (shape.tokens + kSummedTogether - 1) / kSummedTogether;
  if (item >= shape.heads * slices * pieces) return;  // a whole warp
  const size_t slice = item % slices, head = item / slices % shape.heads, piece = item / slices / shape.heads;
  const size_t dim = slice * kWarp + lane;
  const bool real = dim < shape.dims;
  const size_t first = piece * kSummedTogether;
  const size_t end = first + kSummedTogether < shape.tokens ? first + kSummedTogether : shape.tokens;

  double* sums = shared_sums + warp * 16 * kWarp + lane;
  uint32_t* counts = shared_counts + warp * 16 * 8 + lane / 4;
  for (unsigned code = 0; code < 16; ++code) {
    sums[code * kWarp] = 0;
    if (lane % 4 == 0) counts[code * 8] = 0;
  }
  __syncwarp();
  const float* values = rows + head * shape.dims + dim;
  uint8_t* bytes = codes + head * shape.row_bytes + slice * 4 + lane;
  const bool writes = lane < 4 && slice * 4 + lane < shape.row_bytes;
  for (size_t token = first; token < end; token += kSignAhead) {
    float ahead[kSignAhead];
#pragma unroll
    for (unsigned i = 0; i < kSignAhead; ++i)
      ahead[i] = real && token + i < end ? values[(token + i) * shape.row_stride] : -1.0f;
#pragma unroll
    for (unsigned i = 0; i < kSignAhead; ++i) {
      if (token + i >= end) break;  // the whole warp
      // Reversed, dimension 0 is the highest bit, as in the stored form.
      const unsigned signs = __brev(__ballot_sync(kAllLanes, ahead[i] >= 0));
      if (writes) bytes[(token + i) * shape.code_stride] = static_cast<uint8_t>(signs >> (24 - 8 * lane));
      const unsigned code = signs >> (28 - lane / 4 * 4) & 15;
      sums[code * kWarp] += static_cast<double>(ahead[i]);
      if (lane % 4 == 0) ++counts[code * 8];
    }
  }
  __syncwarp();
  const size_t part = head * pieces + piece;
  if (real)
    for (unsigned code = 0; code < 16; ++code)
      all_sums[(part * shape.dims + dim) * 16 + code] = sums[code * kWarp];
  if (real && lane % 4 == 0)
    for (unsigned code = 0; code < 16; ++code)
      all_counts[(part * (shape.dims / 4) + dim / 4) * 16 + code] = counts[code * 8];
}

/// A thread per head and dimension.
__global__ void sign_codebooks(const double* sums, const uint32_t* counts, size_t heads, size_t dims,
                               size_t pieces, float* centroids) {
  const size_t item = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= heads * dims) return;
  const size_t head = item / dims, dim = item % dims;
  double total[16] = {};
  uint64_t count[16] = {};
  for (size_t piece = 0; piece < pieces; ++piece) {
    const size_t part = head * pieces + piece;
#pragma unroll
    for (unsigned code = 0; code < 16; ++code) {
      total[code] += sums[(part * dims + dim) * 16 + code];
      count[code] += counts[(part * (dims / 4) + dim / 4) * 16 + code];
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

inline constexpr unsigned kScoreThreads = 256;
inline constexpr unsigned kScoreTokens = 4;  ///< of a thread: independent chains of additions

/// Adds the entries of one byte of codes, in the order of the groups.
__device__ __forceinline__ float add_entries(float sum, const float* table, unsigned byte, unsigned b,
                                             unsigned groups) {
  sum += table[2 * b * 16 + (byte >> 4)];
  if (2 * b + 1 < groups) sum += table[(2 * b + 1) * 16 + (byte & 15)];
  return sum;
}

/// A block scores kScoreThreads * kScoreTokens tokens of one query, its table in shared memory. kWide: rows
/// are multiples of 16 bytes.
template <bool kWide>
__global__ void __launch_bounds__(kScoreThreads)
    sign_scores(const SignKeys* all_keys, const float* tables, unsigned groups, unsigned row_bytes,
                float* scores, size_t score_stride) {
  auto* table = dynamic_shared<float>();
  const SignKeys keys = all_keys[blockIdx.y];
  for (unsigned i = threadIdx.x; i < groups * 16; i += kScoreThreads)
    table[i] = tables[size_t{blockIdx.y} * groups * 16 + i];
  __syncthreads();
  const size_t first = size_t{blockIdx.x} * (kScoreThreads * kScoreTokens) + threadIdx.x;
  float sums[kScoreTokens] = {};
  if constexpr (kWide) {
    for (unsigned from = 0; from < row_bytes; from += 16) {
      uint4 packed[kScoreTokens];
#pragma unroll
      for (unsigned i = 0; i < kScoreTokens; ++i) {
        const size_t token = first + i * kScoreThreads;
        packed[i] = token < keys.tokens
                        ? *reinterpret_cast<const uint4*>(keys.codes + token * row_bytes + from)
                        : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (unsigned b = 0; b < 16; ++b)
#pragma unroll
        for (unsigned i = 0; i < kScoreTokens; ++i) {
          const unsigned word = b < 4    ? packed[i].x
                                : b < 8  ? packed[i].y
                                : b < 12 ? packed[i].z
                                         : packed[i].w;
          sums[i] = add_entries(sums[i], table, word >> (b % 4 * 8) & 255, from + b, groups);
        }
    }
  } else {
    for (unsigned b = 0; b < row_bytes; ++b)
#pragma unroll
      for (unsigned i = 0; i < kScoreTokens; ++i) {
        const size_t token = first + i * kScoreThreads;
        const unsigned byte = token < keys.tokens ? keys.codes[token * row_bytes + b] : 0;
        sums[i] = add_entries(sums[i], table, byte, b, groups);
      }
  }
#pragma unroll
  for (unsigned i = 0; i < kScoreTokens; ++i) {
    const size_t token = first + i * kScoreThreads;
    if (token < keys.tokens) scores[blockIdx.y * score_stride + token] = sums[i];
  }
}

// The k largest ------------------------------------------------------------------------------------

inline constexpr unsigned kTopThreads = 512;
inline constexpr unsigned kTopBins = 2048;  ///< 11 bits of the key at a time: 11, 11 and 10

/// A block per row: three passes of counting find the k-th largest key and how many equal it, a fourth writes
/// what is above it and the first of those that equal it, in the order of the ids.
__global__ void __launch_bounds__(kTopThreads)
    top_k_rows(const float* scores, size_t stride, const uint64_t* lengths, size_t k, uint32_t* ids,
               float* best) {
  KVCODEC_SHARED_ARRAY(uint32_t, bins, kTopBins);
  KVCODEC_SHARED_ARRAY(uint32_t, scratch, kTopThreads / kWarp);
  KVCODEC_SHARED_ARRAY(uint32_t, found, 2);
  const size_t length = lengths[blockIdx.x];
  const float* row = scores + blockIdx.x * stride;
  ids += blockIdx.x * k, best += blockIdx.x * k;
  const size_t wanted = k < length ? k : length;
  if (wanted == 0) return;
  const unsigned lane = threadIdx.x % kWarp;

  // Keys whose bits above `shift` are those of `prefix` are still in question; `left` of them are wanted.
  uint32_t prefix = 0, above_mask = 0;
  auto left = static_cast<uint32_t>(wanted);
  const unsigned shifts[3] = {21, 10, 0};
  for (unsigned pass = 0; pass < 3; ++pass) {
    const unsigned shift = shifts[pass], width = pass < 2 ? 11 : 10;
    for (unsigned i = threadIdx.x; i < kTopBins; i += kTopThreads) bins[i] = 0;
    __syncthreads();
    for (size_t from = 0; from < length; from += kTopThreads) {
      const size_t i = from + threadIdx.x;
      const uint32_t key = i < length ? static_cast<uint32_t>(ordered_key(row[i])) ^ 0x80000000u : 0;
      const bool counts = i < length && (key & above_mask) == prefix;
      const uint32_t bin = counts ? key >> shift & ((1u << width) - 1) : ~0u;
      // Scores crowd in a few bins: lanes of one bin add once.
      const unsigned same = __match_any_sync(kAllLanes, bin);
      if (counts && static_cast<unsigned>(__ffs(static_cast<int>(same))) == lane + 1)
        atomicAdd(&bins[bin], static_cast<uint32_t>(__popc(same)));
    }
    __syncthreads();
    // The bin that holds the left-th largest: each thread sums its share from the top.
    constexpr unsigned kShare = kTopBins / kTopThreads;
    const unsigned top = kTopBins - threadIdx.x * kShare;  // bins [top - kShare, top)
    unsigned own = 0, total = 0;
    for (unsigned i = 1; i <= kShare; ++i) own += bins[top - i];
    unsigned before = prefix_sum(own, scratch, total);
    if (before < left && left <= before + own) {  // one thread only
      unsigned bin = top - 1;
      for (; before + bins[bin] < left; --bin) before += bins[bin];
      found[0] = bin, found[1] = left - before;
    }
    __syncthreads();
    prefix |= found[0] << shift, left = found[1];
    above_mask |= ((1u << width) - 1) << shift;
    __syncthreads();  // found and bins are written again
  }

  // prefix is the k-th largest key; `left` of those that equal it are taken.
  uint32_t written = 0, equal_before = 0;
  for (size_t from = 0; from < length; from += kTopThreads) {
    const size_t i = from + threadIdx.x;
    const float score = i < length ? row[i] : 0;
    const uint32_t key = static_cast<uint32_t>(ordered_key(score)) ^ 0x80000000u;
    const bool above = i < length && key > prefix, equal = i < length && key == prefix;
    unsigned equals = 0, takes = 0;
    const unsigned own_equal = equal_before + prefix_sum(unsigned{equal}, scratch, equals);
    const bool take = above || (equal && own_equal < left);
    const unsigned place = written + prefix_sum(unsigned{take}, scratch, takes);
    if (take) ids[place] = static_cast<uint32_t>(i), best[place] = score;
    written += takes, equal_before += equals;
    if (written == wanted) break;  // all threads see the same
  }
}

}  // namespace kvcodec::cuda
