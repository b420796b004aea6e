// Sign codes, codebook sums, scores and selection (lib/selfindex, lib/linalg/topk.hpp).
#include "cuda/runtime/kernel.cuh"
#include "cuda/selfindex/signvq.cuh"
#include "lib/linalg/ordered_key.hpp"
#include "lib/selfindex/codebook_entry.hpp"

namespace kvcodec::cuda {

// Codes and sums -----------------------------------------------------------------------------------

/// Rows that a warp takes at a time, while the next so many are under way. There are few warps, a piece of tokens
/// being one's: a row's sums depend on those of the last, so what can be had is many loads under way, and few
/// instructions, none of them a branch, from row to row (there were 40, in 165 cycles).
constexpr unsigned kSignAhead = 32;
/// Rows whose bytes of codes are written together: a lane has one of the four bytes of one of them.
constexpr unsigned kSignWritten = 8;

/// What a warp has: sums and counts of its 32 dimensions in shared memory, a column to each lane, so that there
/// are no bank conflicts beyond the two halves of a double. Signs are as the vote gives them, the first dimension
/// the lowest bit of a group's four; stored codes have it the highest.
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
/// row's signs is its codes, and each lane adds its value to the sum of its group's code, in the order of the
/// tokens, as lib does. It is a block of its own, so that the compiler knows that no lane goes its own way.
__global__ void __launch_bounds__(kWarp)
    sign_sums(const float* rows, SignShape shape, uint8_t* codes, double* all_sums, uint32_t* all_counts) {
  KVCODEC_SHARED_ARRAY(double, shared_sums, 16 * kWarp);
  KVCODEC_SHARED_ARRAY(uint32_t, shared_counts, 16 * 8);
  const unsigned lane = threadIdx.x;
  const size_t slices = (shape.dims + kWarp - 1) / kWarp;
  const size_t pieces = (shape.tokens + kSummedTogether - 1) / kSummedTogether;
  const size_t slice = blockIdx.x % slices, head = blockIdx.x / slices % shape.heads,
               piece = blockIdx.x / slices / shape.heads;
  const size_t dim = slice * kWarp + lane;
  const bool real = dim < shape.dims;
  const size_t first = piece * kSummedTogether;
  const size_t end = first + kSummedTogether < shape.tokens ? first + kSummedTogether : shape.tokens;
  const auto count = static_cast<unsigned>(end - first);

  const SignColumn column{shared_sums + lane, shared_counts + lane / 4, lane / 4 * 4};
  for (unsigned code = 0; code < 16; ++code) {
    column.sums[code * kWarp] = 0;
    if (lane % 4 == 0) column.counts[code * 8] = 0;
  }
  __syncwarp();
  // Lanes beyond the last dimension have that one's values, and no signs.
  const float* const values =
      rows + first * shape.row_stride + head * shape.dims + (real ? dim : shape.dims - 1);
  uint8_t* const bytes = codes + first * shape.code_stride + head * shape.row_bytes + slice * 4 + lane % 4;
  const bool writes = slice * 4 + lane % 4 < shape.row_bytes;
  const auto signs_of = [&](float value) { return __ballot_sync(kAllLanes, real && value >= 0); };
  const auto write = [&](unsigned token, unsigned signs) {
    if (writes) bytes[token * shape.code_stride] = static_cast<uint8_t>(__brev(signs) >> (24 - lane % 4 * 8));
  };
  const auto load = [&](float(&to)[kSignAhead], unsigned token) {
    const float* from = values + token * shape.row_stride;
#pragma unroll
    for (unsigned i = 0; i < kSignAhead; ++i, from += shape.row_stride) to[i] = *from;
  };
  const unsigned whole = count / kSignAhead * kSignAhead;
  float ahead[kSignAhead], next[kSignAhead];
  if (whole > 0) load(ahead, 0);
  for (unsigned token = 0; token < whole; token += kSignAhead) {
    load(next, token + kSignAhead < whole ? token + kSignAhead : token);  // the last ones: once more
#pragma unroll
    for (unsigned from = 0; from < kSignAhead; from += kSignWritten) {
      unsigned signs[kSignWritten], written = 0;
#pragma unroll
      for (unsigned i = 0; i < kSignWritten; ++i) signs[i] = signs_of(ahead[from + i]);
#pragma unroll
      for (unsigned i = 0; i < kSignWritten; ++i)
        if (lane / 4 == i) written = signs[i];
      write(token + from + lane / 4, written);
#pragma unroll
      for (unsigned i = 0; i < kSignWritten; i += 2)
        column.add(signs[i], ahead[from + i], signs[i + 1], ahead[from + i + 1]);
    }
#pragma unroll
    for (unsigned i = 0; i < kSignAhead; ++i) ahead[i] = next[i];
  }
  for (unsigned token = whole; token < count; ++token) {
    const float value = values[token * shape.row_stride];
    const unsigned signs = signs_of(value);
    if (lane < 4) write(token, signs);
    column.add(signs, value);
  }
  __syncwarp();
  const size_t part = head * pieces + piece;
  const auto stored = [](unsigned group) { return __brev(group) >> 28; };
  if (real)
    for (unsigned group = 0; group < 16; ++group)
      all_sums[(part * shape.dims + dim) * 16 + stored(group)] = column.sums[group * kWarp];
  if (real && lane % 4 == 0)
    for (unsigned group = 0; group < 16; ++group)
      all_counts[(part * (shape.dims / 4) + dim / 4) * 16 + stored(group)] = column.counts[group * 8] / 4;
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
/// shared memory; the last may have fewer queries. kWide: rows are multiples of 16 bytes. Finding an entry
/// costs more than reading and adding it: for two queries it is done once, and their 16 entries for a group
/// fill the banks just once.
template <bool kWide, unsigned kTogether>
__global__ void __launch_bounds__(kScoreThreads)
    sign_scores(const SignKeys* all_keys, size_t queries, const float* tables, unsigned groups,
                unsigned row_bytes, float* scores, size_t score_stride) {
  auto* table = dynamic_shared<ScoreEntry<kTogether>>();
  const size_t query = size_t{blockIdx.y} * kTogether;
  const SignKeys keys = all_keys[query];
#pragma unroll
  for (unsigned q = 0; q < kTogether; ++q)
    for (unsigned i = threadIdx.x; i < row_bytes * 32; i += kScoreThreads)  // zeros for a group that is none
      table[i].of[q] = query + q < queries && i < groups * 16 ? tables[(query + q) * groups * 16 + i] : 0.0f;
  __syncthreads();
  const size_t first = size_t{blockIdx.x} * (kScoreThreads * kScoreTokens) + threadIdx.x;
  float sums[kScoreTokens][kTogether] = {};
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
      for (unsigned b = 0; b < 16; ++b) {
        unsigned words[kScoreTokens];
#pragma unroll
        for (unsigned i = 0; i < kScoreTokens; ++i)
          words[i] = b < 4 ? packed[i].x : b < 8 ? packed[i].y : b < 12 ? packed[i].z : packed[i].w;
        add_entries(sums, table + (from + b) * 32, words, b % 4 * 8);
      }
    }
  } else {
    for (unsigned b = 0; b < row_bytes; ++b) {
      unsigned bytes[kScoreTokens];
#pragma unroll
      for (unsigned i = 0; i < kScoreTokens; ++i) {
        const size_t token = first + i * kScoreThreads;
        bytes[i] = token < keys.tokens ? keys.codes[token * row_bytes + b] : 0;
      }
      add_entries(sums, table + b * 32, bytes, 0);
    }
  }
#pragma unroll
  for (unsigned i = 0; i < kScoreTokens; ++i) {
    const size_t token = first + i * kScoreThreads;
#pragma unroll
    for (unsigned q = 0; q < kTogether; ++q)
      if (token < keys.tokens && query + q < queries) scores[(query + q) * score_stride + token] = sums[i][q];
  }
}

// The k largest ------------------------------------------------------------------------------------

constexpr unsigned kTopThreads = 1024;
constexpr unsigned kTopWarps = kTopThreads / kWarp;
static_assert(kTopWarps == kWarp);   // a lane per warp adds up what the warps have counted
constexpr unsigned kTopBins = 2048;  ///< 11 bits of the key at a time: 11, 11 and 10
constexpr unsigned kTopAhead = 8;    ///< scores that a lane has under way
constexpr unsigned kTopFirst = 21;   ///< bits below those of the first 11
constexpr unsigned kTopKept = 4096;  ///< keys of the first pass's bin that are kept; more are read again

/// The scores of one warp, one behind the other.
struct TopPart {
  const float* scores;
  uint32_t count;

  /// Calls body(i, score, key, real) for all scores, by all lanes together; keys are in the order of the
  /// scores. What is not real is 0.
  template <class Body>
  __device__ __forceinline__ void each(Body&& body) const {
    constexpr uint32_t kBatch = kTopAhead * kWarp;
    const uint32_t whole = count / kBatch * kBatch;
    for (uint32_t from = 0; from < whole; from += kBatch) batch<true>(from, body);
    if (whole < count) batch<false>(whole, body);
  }

 private:
  /// kWhole: all scores of it are there, and nothing is asked for each.
  template <bool kWhole, class Body>
  __device__ __forceinline__ void batch(uint32_t from, Body&& body) const {
    const unsigned lane = threadIdx.x % kWarp;
    const float* const own = scores + from + lane;
    const uint32_t rest = count - from;
    float ahead[kTopAhead];
#pragma unroll
    for (unsigned i = 0; i < kTopAhead; ++i)
      ahead[i] = kWhole || i * kWarp + lane < rest ? own[i * kWarp] : 0.0f;
#pragma unroll
    for (unsigned i = 0; i < kTopAhead; ++i)
      body(from + i * kWarp + lane, ahead[i], static_cast<uint32_t>(ordered_key(ahead[i])) ^ 0x80000000u,
           kWhole || i * kWarp + lane < rest);
  }
};

/// A block per row, each warp with its part of it: a pass counts the first 11 bits of all keys; a second one
/// keeps the keys of the bin that the k-th largest is in, with their warps, in which then two passes find this
/// key, and a third one counts for each warp how many are above it and equal to it; and a last one over all
/// writes what is above it and the first of those that equal it, in the order of the ids. Where too many are of
/// one bin, the whole row stands for the kept ones.
__global__ void __launch_bounds__(kTopThreads)
    top_k_rows(const float* scores, size_t stride, const uint64_t* lengths, size_t k, uint32_t* ids,
               float* best) {
  KVCODEC_SHARED_ARRAY(uint32_t, bins, kTopBins);
  KVCODEC_SHARED_ARRAY(uint32_t, scratch, kTopWarps);
  KVCODEC_SHARED_ARRAY(uint32_t, equal_counts, kTopWarps);
  KVCODEC_SHARED_ARRAY(uint32_t, found, 2);
  KVCODEC_SHARED_ARRAY(uint32_t, kept, kTopKept);  // keys without their first bits, which the warp replaces
  KVCODEC_SHARED_ARRAY(uint32_t, kept_count, 1);
  const uint64_t length = lengths[blockIdx.x];
  ids += blockIdx.x * k, best += blockIdx.x * k;
  const uint64_t wanted = k < length ? k : length;
  if (wanted == 0) return;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const uint64_t share = (length + kTopThreads - 1) / kTopThreads * kWarp;  // of a warp
  const uint64_t first = share * warp < length ? share * warp : length;
  const TopPart part{scores + blockIdx.x * stride + first,
                     static_cast<uint32_t>(length - first < share ? length - first : share)};

  // Keys whose bits above `shift` are those of `prefix` are still in question; `left` of them are wanted.
  uint32_t prefix = 0, above_mask = 0;
  auto left = static_cast<uint32_t>(wanted);
  // Sets them from the counts of `width` bits from `shift` on.
  const auto narrow_down = [&](unsigned shift, unsigned width) {
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
  };
  const auto clear_bins = [&] {
    for (unsigned i = threadIdx.x; i < kTopBins; i += kTopThreads) bins[i] = 0;
    __syncthreads();
  };

  if (threadIdx.x == 0) kept_count[0] = 0;
  clear_bins();
  part.each([&](uint32_t, float, uint32_t key, bool real) {
    if (real) atomicAdd(&bins[key >> kTopFirst], 1u);
  });
  __syncthreads();
  narrow_down(kTopFirst, 11);
  const uint32_t first_prefix = prefix;

  uint32_t above = 0;
  part.each([&](uint32_t, float, uint32_t key, bool real) {
    if (!real || key < first_prefix) return;
    if (key >> kTopFirst != first_prefix >> kTopFirst) {
      ++above;
      return;
    }
    const uint32_t place = atomicAdd(kept_count, 1u);  // their order changes nothing
    if (place < kTopKept) kept[place] = (key & ((1u << kTopFirst) - 1)) | warp << kTopFirst;
  });
  above = sum_of_lanes(above);
  __syncthreads();
  // Calls body(key, warp) for all keys of the bin.
  const auto each_kept = [&](auto&& body) {
    if (kept_count[0] <= kTopKept) {
      for (unsigned i = threadIdx.x; i < kept_count[0]; i += kTopThreads)
        body(first_prefix | (kept[i] & ((1u << kTopFirst) - 1)), kept[i] >> kTopFirst);
    } else {
      part.each([&](uint32_t, float, uint32_t key, bool real) {
        if (real && key >> kTopFirst == first_prefix >> kTopFirst) body(key, warp);
      });
    }
  };
  const unsigned shifts[2] = {10, 0};
  for (unsigned pass = 0; pass < 2; ++pass) {
    const unsigned shift = shifts[pass], width = pass == 0 ? 11 : 10;
    clear_bins();
    each_kept([&](uint32_t key, unsigned) {
      if ((key & above_mask) == prefix) atomicAdd(&bins[key >> shift & ((1u << width) - 1)], 1u);
    });
    __syncthreads();
    narrow_down(shift, width);
  }

  // prefix is the k-th largest key; `left` of those that equal it are taken.
  if (lane == 0) scratch[warp] = above, equal_counts[warp] = 0;
  __syncthreads();
  each_kept([&](uint32_t key, unsigned owner) {
    if (key >= prefix) atomicAdd(key == prefix ? &equal_counts[owner] : &scratch[owner], 1u);
  });
  __syncthreads();
  uint32_t equal_before = sum_of_lanes(lane < warp ? equal_counts[lane] : 0);
  uint32_t written =
      sum_of_lanes(lane < warp ? scratch[lane] : 0) + (equal_before < left ? equal_before : left);
  if (scratch[warp] + equal_counts[warp] == 0) return;  // the whole warp
  const uint32_t below = (1u << lane) - 1;              // the lanes before this one
  part.each([&](uint32_t i, float score, uint32_t key, bool real) {
    bool take = real && key > prefix;
    const uint32_t equals = __ballot_sync(kAllLanes, real && key == prefix);
    if (equals != 0) {  // for the whole warp
      take |= (equals >> lane & 1) != 0 && equal_before + __popc(equals & below) < left;
      equal_before += __popc(equals);
    }
    const uint32_t takes = __ballot_sync(kAllLanes, take);
    if (take) {
      const uint32_t place = written + __popc(takes & below);
      ids[place] = static_cast<uint32_t>(first) + i, best[place] = score;
    }
    written += __popc(takes);
  });
}

// Launchers ---------------------------------------------------------------------------------------

Status run_sign_sums(const float* rows, const SignShape& shape, uint8_t* codes, double* sums,
                     uint32_t* counts, StreamHandle stream) {
  const size_t items = shape.heads * divide_up(shape.dims, kWarp) * divide_up(shape.tokens, kSummedTogether);
  return launch(sign_sums, static_cast<unsigned>(items), kWarp, 0, stream, rows, shape, codes, sums, counts);
}

Status run_sign_codebooks(const double* sums, const uint32_t* counts, size_t heads, size_t dims,
                          size_t pieces, float* centroids, StreamHandle stream) {
  constexpr unsigned kThreads = 128;
  return launch(sign_codebooks, static_cast<unsigned>(divide_up(heads * dims, kThreads)), kThreads, 0, stream,
                sums, counts, heads, dims, pieces, centroids);
}

Status run_sign_scores(const SignKeys* keys, size_t queries, size_t most_tokens, const float* tables,
                       size_t groups, size_t row_bytes, bool in_pairs, float* scores, size_t score_stride,
                       StreamHandle stream) {
  const size_t together = in_pairs ? 2 : 1;
  const dim3 grid(static_cast<unsigned>(divide_up(most_tokens, kScoreThreads * kScoreTokens)),
                  static_cast<unsigned>(divide_up(queries, together)));
  const bool wide = row_bytes % 16 == 0;
  const auto kernel = in_pairs ? (wide ? sign_scores<true, 2> : sign_scores<false, 2>)
                               : (wide ? sign_scores<true, 1> : sign_scores<false, 1>);
  return launch(kernel, grid, kScoreThreads, together * row_bytes * 32 * sizeof(float), stream, keys, queries,
                tables, static_cast<unsigned>(groups), static_cast<unsigned>(row_bytes), scores,
                score_stride);
}

Status run_top_k(const float* scores, size_t stride, const uint64_t* lengths, size_t rows, size_t k,
                 uint32_t* ids, float* best, StreamHandle stream) {
  return launch(top_k_rows, static_cast<unsigned>(rows), kTopThreads, 0, stream, scores, stride, lengths, k,
                ids, best);
}

}  // namespace kvcodec::cuda
