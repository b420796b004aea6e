// Attention over some tokens, and joining what comes of them (lib/attention/attention.hpp).
#include "cuda/attention/attention.cuh"
#include "cuda/runtime/kernel.cuh"

namespace kvcodec::cuda {

constexpr unsigned kAttentionWarps = 8;
static_assert(kAttentionWarps >= kMaxQueries);  // a warp per query works out its weights

/// Eight floats of a row from j on, zeros behind dims. kWhole: rows are multiples of 16 bytes, 8 dims at
/// least are there.
template <bool kWhole>
__device__ __forceinline__ void load_eight(const float* row, unsigned j, unsigned dims, float (&out)[8]) {
  if constexpr (kWhole) {
    const float4 a = *reinterpret_cast<const float4*>(row + j),
                 b = *reinterpret_cast<const float4*>(row + j + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
  } else {
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) out[i] = j + i < dims ? row[j + i] : 0;
  }
}

/// Eight elements of a row as they lie in memory: several rows are on their way together, and floats would take
/// twice the registers of halves.
template <RowKind kKind>
struct Packed {
  unsigned words[4];
};
template <>
struct Packed<RowKind::f32> {
  float of[8];
};
/// signs: 1 for +, the first the highest bit.
template <>
struct Packed<RowKind::two_bit> {
  unsigned levels, grid, signs;
};

/// Eight elements from j on, a multiple of 8; what is behind dims becomes zeros. kWhole: rows are multiples of
/// 16 bytes, 8 dims at least are there.
template <RowKind kKind, bool kWhole>
struct Rows {
  RowPointers rows;
  unsigned dims;

  __device__ __forceinline__ Packed<kKind> key(size_t token, unsigned j) const {
    if constexpr (kKind == RowKind::two_bit)
      return coded(rows.keys, rows.key_grids, token, j, rows.signs[token * ((dims + 7) / 8) + j / 8]);
    else
      return plain(rows.keys, token, j);
  }
  __device__ __forceinline__ Packed<kKind> value(size_t token, unsigned j) const {
    if constexpr (kKind == RowKind::two_bit)
      return coded(rows.values, rows.value_grids, token, j, 0xff);
    else
      return plain(rows.values, token, j);
  }

  __device__ __forceinline__ void widen(const Packed<kKind>& packed, unsigned j, float (&out)[8]) const {
    if constexpr (kKind == RowKind::two_bit) {
      const float scale = f16_to_float(static_cast<uint16_t>(packed.grid & 0xffff));
      const float zero = f16_to_float(static_cast<uint16_t>(packed.grid >> 16));
      // zero + level * scale in three instructions: the bits of a level are taken where they lie, as those of a float,
      // 2^shift times the level, and its product with the scale, 13 bits, is exact, fused or not.
      constexpr uint32_t kMagic = 0x4b000000;  // 2^23
      const uint32_t bytes[2] = {packed.levels | kMagic, packed.levels >> 8 | kMagic};
#pragma unroll
      for (unsigned i = 0; i < 8; ++i) {
        const unsigned shift = 6 - 2 * (i % 4);
        const float level = float_of(bytes[i / 4] & (kMagic | 3u << shift)) - float_of(kMagic);
        const float value = fmaf(level, scale * (1.0f / static_cast<float>(1u << shift)), zero);
        const uint32_t minus = ~packed.signs << (24 + i) & 0x80000000u;
        out[i] = !kWhole && j + i >= dims ? 0 : float_of(bits_of(value) ^ minus);
      }
    } else {
#pragma unroll
      for (unsigned i = 0; i < 8; ++i) {
        if constexpr (kKind == RowKind::f32) {
          out[i] = packed.of[i];
        } else {
          const auto half = static_cast<uint16_t>(packed.words[i / 2] >> (i % 2 * 16));
          out[i] = kKind == RowKind::f16 ? f16_to_float(half) : bf16_to_float(half);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ Packed<kKind> plain(const void* from, size_t token, unsigned j) const {
    Packed<kKind> packed;
    if constexpr (kKind == RowKind::f32) {
      load_eight<kWhole>(static_cast<const float*>(from) + token * dims, j, dims, packed.of);
    } else {
      const auto* const row = static_cast<const uint16_t*>(from) + token * dims;
      if constexpr (kWhole) {
        const uint4 words = *reinterpret_cast<const uint4*>(row + j);
        packed.words[0] = words.x, packed.words[1] = words.y;
        packed.words[2] = words.z, packed.words[3] = words.w;
      } else {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          const unsigned low = j + 2 * i < dims ? row[j + 2 * i] : 0;
          packed.words[i] = low | (j + 2 * i + 1 < dims ? unsigned{row[j + 2 * i + 1]} << 16 : 0);
        }
      }
    }
    return packed;
  }
  /// They are of one group.
  __device__ __forceinline__ Packed<kKind> coded(const void* levels, const uint32_t* grids, size_t token,
                                                 unsigned j, unsigned signs) const {
    const auto* const row = static_cast<const uint8_t*>(levels) + token * ((dims + 3) / 4);
    unsigned both = 0;
    if constexpr (kWhole)
      both = *reinterpret_cast<const uint16_t*>(row + j / 4);
    else
      both = (j < dims ? row[j / 4] : 0u) | (j + 4 < dims ? unsigned{row[j / 4 + 1]} << 8 : 0u);
    return {both, grids[token * ((dims + 31) / 32) + j / 32], signs};
  }
};

/// Sums of the first kCount values each over groups of kLanes lanes, in the order of a butterfly, with at most as many
/// shuffles as values: at each step a lane goes on with half of them while the lane it pairs with takes the
/// others. Lane l of a group then has in values[0], ... the sums of those from l * kCount / kLanes on; of less
/// values than lanes, kLanes / kCount lanes each have the same.
template <unsigned kLanes, unsigned kCount, unsigned kValues>
__device__ __forceinline__ void sum_over_lanes(float (&values)[kValues]) {
  if constexpr (kLanes == 1) {
    return;
  } else if constexpr (kCount == 1) {
    values[0] += __shfl_xor_sync(kAllLanes, values[0], kLanes / 2);
    sum_over_lanes<kLanes / 2, 1>(values);
  } else {
    const bool upper = (threadIdx.x & kLanes / 2) != 0;
#pragma unroll
    for (unsigned i = 0; i < kCount / 2; ++i) {
      const float low = values[i], high = values[i + kCount / 2];
      values[i] = (upper ? high : low) + __shfl_xor_sync(kAllLanes, upper ? low : high, kLanes / 2);
    }
    sum_over_lanes<kLanes / 2, kCount / 2>(values);
  }
}

/// A lane holds 8 dimensions of a token; kLanes of them a row, so that a warp reads 32 / kLanes rows at once,
/// each in one go, and kAhead times so many are on their way together: one at a time took 550 us for what H100
/// copies in 356.
template <RowKind kKind, bool kWhole, unsigned kQueries, unsigned kLanes>
__global__ void __launch_bounds__(kAttentionWarps* kWarp)
    attention_items(const AttentionItem* items, unsigned dims, const float* queries, const float* shifts,
                    float* states, float* all_sums) {
  constexpr unsigned kRowsAtOnce = kWarp / kLanes, kStep = kRowsAtOnce * kAttentionWarps;
  constexpr unsigned kAhead = kQueries <= 4 ? 4 : 2;
  KVCODEC_SHARED_ARRAY(float, weights, kQueries* kSplitTokens);
  KVCODEC_SHARED_ARRAY(float, results, kQueries* kLanes * 8);
  const AttentionItem item = items[blockIdx.x];
  const Rows<kKind, kWhole> rows{item.rows, dims};
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const unsigned j = lane % kLanes * 8, own = warp * kRowsAtOnce + lane / kLanes;
  const bool reads = j < dims;
  // Row n of those on their way; behind the last one, which is none, the last one again, so that nothing
  // branches around loads.
  const auto token_of = [&](unsigned first, unsigned n) -> size_t {
    const unsigned t = first + n * kStep + own;
    const unsigned place = item.first + (t < item.count ? t : item.count - 1);
    return item.ids ? item.ids[place] : place;
  };

  {  // logits
    float query[kQueries][8] = {};
    if (reads) {
#pragma unroll
      for (unsigned q = 0; q < kQueries; ++q)
        load_eight<kWhole>(queries + size_t{item.query + q} * dims, j, dims, query[q]);
    }
    constexpr unsigned kSums = kAhead * kQueries, kHeld = kSums > kLanes ? kSums / kLanes : 1;
    const unsigned held = lane % kLanes * kSums / kLanes;  // the first sum that this lane gets
    const bool writes = kSums >= kLanes || lane % (kLanes / kSums) == 0;
    for (unsigned first = 0; first < item.count; first += kAhead * kStep) {
      Packed<kKind> packed[kAhead] = {};
      if (reads) {
#pragma unroll
        for (unsigned n = 0; n < kAhead; ++n) packed[n] = rows.key(token_of(first, n), j);
      }
      float sums[kSums] = {};
#pragma unroll
      for (unsigned n = 0; n < kAhead; ++n) {
        float key[8];
        rows.widen(packed[n], j, key);
#pragma unroll
        for (unsigned q = 0; q < kQueries; ++q)
#pragma unroll
          for (unsigned i = 0; i < 8; ++i)
            sums[n * kQueries + q] = fmaf(key[i], query[q][i], sums[n * kQueries + q]);
      }
      sum_over_lanes<kLanes, kSums>(sums);
#pragma unroll
      for (unsigned i = 0; i < kHeld; ++i) {
        const unsigned q = (held + i) % kQueries, t = first + (held + i) / kQueries * kStep + own;
        if (writes && t < item.count) weights[q * kSplitTokens + t] = sums[i] + shifts[item.query + q];
      }
    }
  }
  __syncthreads();

  // Weights: a warp per query.
  if (warp < kQueries) {
    float* of_query = weights + warp * kSplitTokens;
    float most = -INFINITY, sum = 0;
    for (unsigned t = lane; t < item.count; t += kWarp) most = fmaxf(most, of_query[t]);
    most = largest_of_lanes(most);
    for (unsigned t = lane; t < item.count; t += kWarp) {
      const float weight = expf(of_query[t] - most);
      of_query[t] = weight;
      sum += weight;
    }
    sum = sum_of_lanes(sum);
    if (lane == 0) {
      float* state = states + (size_t{blockIdx.x} * kQueries + warp) * 2;
      state[0] = most, state[1] = sum;
    }
  }
  __syncthreads();

  // Sums of values.
  float sums[kQueries][8] = {};
  for (unsigned first = 0; first < item.count; first += kAhead * kStep) {
    Packed<kKind> packed[kAhead] = {};
    if (reads) {
#pragma unroll
      for (unsigned n = 0; n < kAhead; ++n) packed[n] = rows.value(token_of(first, n), j);
    }
#pragma unroll
    for (unsigned n = 0; n < kAhead; ++n) {
      const unsigned t = first + n * kStep + own;
      if (t >= item.count) break;
      float value[8];
      rows.widen(packed[n], j, value);
#pragma unroll
      for (unsigned q = 0; q < kQueries; ++q) {
        const float weight = weights[q * kSplitTokens + t];
#pragma unroll
        for (unsigned i = 0; i < 8; ++i) sums[q][i] = fmaf(value[i], weight, sums[q][i]);
      }
    }
  }
#pragma unroll
  for (unsigned q = 0; q < kQueries; ++q)
#pragma unroll
    for (unsigned i = 0; i < 8; ++i)
#pragma unroll
      for (unsigned step = kLanes; step < kWarp; step *= 2)
        sums[q][i] += __shfl_xor_sync(kAllLanes, sums[q][i], step);
  for (unsigned w = 0; w < kAttentionWarps; ++w) {  // one after the other: the order of the sum is fixed
    if (warp == w && lane < kLanes) {
#pragma unroll
      for (unsigned q = 0; q < kQueries; ++q)
#pragma unroll
        for (unsigned i = 0; i < 8; ++i) {
          float& result = results[(q * 8 + i) * kLanes + lane];
          result = w == 0 ? sums[q][i] : result + sums[q][i];
        }
    }
    __syncthreads();
  }
  for (unsigned place = threadIdx.x; place < kQueries * dims; place += kAttentionWarps * kWarp) {
    const unsigned q = place / dims, dim = place % dims;
    all_sums[(size_t{blockIdx.x} * kQueries + q) * dims + dim] =
        results[(q * 8 + dim % 8) * kLanes + dim / 8];
  }
}

/// A block per result.
__global__ void attention_join(const AttentionResult* results, unsigned queries_each, unsigned dims,
                               const float* states, const float* sums, float* out) {
  const AttentionResult result = results[blockIdx.x];
  float most = -INFINITY;
  for (unsigned i = result.first_item + threadIdx.x % kWarp; i < result.end_item; i += kWarp)
    most = fmaxf(most, states[(size_t{i} * queries_each + result.query) * 2]);
  most = largest_of_lanes(most);
  constexpr unsigned kAhead = 16;  // items whose sums are on their way together
  for (unsigned j = threadIdx.x; j < dims; j += blockDim.x) {
    float total = 0, weight = 0;
    for (unsigned first = result.first_item; first < result.end_item; first += kAhead) {
      float2 state[kAhead];
      float sum[kAhead];
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        const unsigned item = first + i < result.end_item ? first + i : first;
        const size_t place = size_t{item} * queries_each + result.query;
        state[i] = reinterpret_cast<const float2*>(states)[place];
        sum[i] = sums[place * dims + j];
      }
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        if (first + i >= result.end_item) break;
        const float factor = expf(state[i].x - most);
        weight += factor * state[i].y;
        total += factor * sum[i];
      }
    }
    out[size_t{blockIdx.x} * dims + j] = weight > 0 ? total / weight : 0;
  }
}

// Launchers ---------------------------------------------------------------------------------------

namespace {

using Kernel = void (*)(const AttentionItem*, unsigned, const float*, const float*, float*, float*);

template <RowKind kKind, unsigned kQueries>
Kernel with_lanes(unsigned dims) {
  // Rows whose eighths can be loaded at once (16 bytes of halves, 2 bytes of levels) are read by as many
  // lanes as they need; others, which are rare, by a whole warp.
  if (dims % 8 != 0) return attention_items<kKind, false, kQueries, 32>;
  if (dims <= 64) return attention_items<kKind, true, kQueries, 8>;
  if (dims <= 128) return attention_items<kKind, true, kQueries, 16>;
  return attention_items<kKind, true, kQueries, 32>;
}

template <RowKind kKind>
Kernel of_kind(unsigned queries, unsigned dims) {
  if (queries == 1) return with_lanes<kKind, 1>(dims);
  if (queries == 2) return with_lanes<kKind, 2>(dims);
  if (queries == 4) return with_lanes<kKind, 4>(dims);
  return with_lanes<kKind, 8>(dims);
}

}  // namespace

Status run_attention_items(RowKind kind, const AttentionItem* items, size_t count, unsigned queries_each,
                           unsigned dims, const float* queries, const float* shifts, float* states,
                           float* sums, StreamHandle stream) {
  const Kernel kernel = kind == RowKind::f32    ? of_kind<RowKind::f32>(queries_each, dims)
                        : kind == RowKind::f16  ? of_kind<RowKind::f16>(queries_each, dims)
                        : kind == RowKind::bf16 ? of_kind<RowKind::bf16>(queries_each, dims)
                                                : of_kind<RowKind::two_bit>(queries_each, dims);
  return launch(kernel, static_cast<unsigned>(count), kAttentionWarps * kWarp, 0, stream, items, dims,
                queries, shifts, states, sums);
}

Status run_attention_join(const AttentionResult* results, size_t count, unsigned queries_each, unsigned dims,
                          const float* states, const float* sums, float* out, StreamHandle stream) {
  return launch(attention_join, static_cast<unsigned>(count), 128, 0, stream, results, queries_each, dims,
                states, sums, out);
}

}  // namespace kvcodec::cuda
