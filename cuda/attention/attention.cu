// Attention over some tokens, and joining what comes of them (lib/attention/attention.hpp).
#include "cuda/attention/attention.cuh"
#include "cuda/runtime/kernel.cuh"
#include "lib/quant/two_bit_value.hpp"

namespace kvcodec::cuda {

constexpr unsigned kAttentionWarps = 8;
static_assert(kAttentionWarps >= kMostQueries);  // a warp per query works out its weights

/// Eight elements of a row from j on, zeros behind dims. kWhole: rows are multiples of 16 bytes, 8 dims at
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

template <bool kWhole, float (*kWiden)(uint16_t)>
__device__ __forceinline__ void load_eight_halves(const uint16_t* row, unsigned j, unsigned dims,
                                                  float (&out)[8]) {
  if constexpr (kWhole) {
    const uint4 packed = *reinterpret_cast<const uint4*>(row + j);
    const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (unsigned i = 0; i < 8; ++i)
      out[i] = kWiden(static_cast<uint16_t>(i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffff));
  } else {
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) out[i] = j + i < dims ? kWiden(row[j + i]) : 0;
  }
}

/// Eight coded elements; j is a multiple of 8, so they are of one group. signs: 1 for +, the first the
/// highest bit.
template <bool kWhole>
__device__ __forceinline__ void load_eight_levels(const uint8_t* levels, uint32_t grid, unsigned signs,
                                                  unsigned j, unsigned dims, float (&out)[8]) {
  const float scale = f16_to_float(static_cast<uint16_t>(grid & 0xffff));
  const float zero = f16_to_float(static_cast<uint16_t>(grid >> 16));
  unsigned bytes[2];
  if constexpr (kWhole) {
    const unsigned both = *reinterpret_cast<const uint16_t*>(levels + j / 4);
    bytes[0] = both & 255, bytes[1] = both >> 8;
  } else {
    bytes[0] = j < dims ? levels[j / 4] : 0, bytes[1] = j + 4 < dims ? levels[j / 4 + 1] : 0;
  }
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) {
    const float value = two_bit_value(two_bit_level(bytes[i / 4], i % 4), scale, zero);
    out[i] = !kWhole && j + i >= dims ? 0 : signs >> (7 - i) & 1 ? value : -value;
  }
}

template <RowKind kKind, bool kWhole>
struct Rows {
  RowPointers rows;
  unsigned dims;

  __device__ __forceinline__ void key(size_t token, unsigned j, float (&out)[8]) const {
    if constexpr (kKind == RowKind::two_bit) {
      const size_t groups = (dims + 31) / 32;
      load_eight_levels<kWhole>(static_cast<const uint8_t*>(rows.keys) + token * ((dims + 3) / 4),
                                rows.key_grids[token * groups + j / 32],
                                rows.signs[token * ((dims + 7) / 8) + j / 8], j, dims, out);
    } else {
      plain(rows.keys, token, j, out);
    }
  }
  __device__ __forceinline__ void value(size_t token, unsigned j, float (&out)[8]) const {
    if constexpr (kKind == RowKind::two_bit) {
      const size_t groups = (dims + 31) / 32;
      load_eight_levels<kWhole>(static_cast<const uint8_t*>(rows.values) + token * ((dims + 3) / 4),
                                rows.value_grids[token * groups + j / 32], 0xff, j, dims, out);
    } else {
      plain(rows.values, token, j, out);
    }
  }

 private:
  __device__ __forceinline__ void plain(const void* from, size_t token, unsigned j, float (&out)[8]) const {
    if constexpr (kKind == RowKind::f32)
      load_eight<kWhole>(static_cast<const float*>(from) + token * dims, j, dims, out);
    else
      load_eight_halves<kWhole, kKind == RowKind::f16 ? f16_to_float : bf16_to_float>(
          static_cast<const uint16_t*>(from) + token * dims, j, dims, out);
  }
};

/// A lane holds 8 dimensions of a token; kLanes of them a row, so that a warp reads 32 / kLanes rows at once,
/// each in one go.
template <RowKind kKind, bool kWhole, unsigned kQueries, unsigned kLanes>
__global__ void __launch_bounds__(kAttentionWarps* kWarp)
    attention_items(const AttentionItem* items, unsigned dims, const float* queries, const float* shifts,
                    float* states, float* all_sums) {
  constexpr unsigned kRowsAtOnce = kWarp / kLanes, kStep = kRowsAtOnce * kAttentionWarps;
  KVCODEC_SHARED_ARRAY(float, weights, kQueries* kSplitTokens);
  KVCODEC_SHARED_ARRAY(float, results, kQueries* kLanes * 8);
  const AttentionItem item = items[blockIdx.x];
  const Rows<kKind, kWhole> rows{item.rows, dims};
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const unsigned j = lane % kLanes * 8, own = warp * kRowsAtOnce + lane / kLanes;
  const bool reads = j < dims;

  {  // logits
    float query[kQueries][8];
#pragma unroll
    for (unsigned q = 0; q < kQueries; ++q)
#pragma unroll
      for (unsigned i = 0; i < 8; ++i)
        query[q][i] = j + i < dims ? queries[size_t{item.query + q} * dims + j + i] : 0;
    for (unsigned first = 0; first < item.count; first += kStep) {
      const unsigned t = first + own;
      const bool real = t < item.count;
      float key[8] = {};
      if (real && reads) rows.key(item.ids ? item.ids[item.first + t] : item.first + t, j, key);
#pragma unroll
      for (unsigned q = 0; q < kQueries; ++q) {
        float sum = 0;
#pragma unroll
        for (unsigned i = 0; i < 8; ++i) sum = fmaf(key[i], query[q][i], sum);
#pragma unroll
        for (unsigned step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
        if (real && lane % kLanes == 0) weights[q * kSplitTokens + t] = sum + shifts[item.query + q];
      }
    }
  }
  __syncthreads();

  // Weights: a warp per query.
  if (warp < kQueries) {
    float* of_query = weights + warp * kSplitTokens;
    float most = -INFINITY, sum = 0;
    for (unsigned t = lane; t < item.count; t += kWarp) most = fmaxf(most, of_query[t]);
#pragma unroll
    for (unsigned step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
    for (unsigned t = lane; t < item.count; t += kWarp) {
      const float weight = expf(of_query[t] - most);
      of_query[t] = weight;
      sum += weight;
    }
#pragma unroll
    for (unsigned step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane == 0) {
      float* state = states + (size_t{blockIdx.x} * kQueries + warp) * 2;
      state[0] = most, state[1] = sum;
    }
  }
  __syncthreads();

  // Sums of values.
  float sums[kQueries][8] = {};
  for (unsigned t = own; t < item.count; t += kStep) {
    float value[8] = {};
    if (reads) rows.value(item.ids ? item.ids[item.first + t] : item.first + t, j, value);
#pragma unroll
    for (unsigned q = 0; q < kQueries; ++q) {
      const float weight = weights[q * kSplitTokens + t];
#pragma unroll
      for (unsigned i = 0; i < 8; ++i) sums[q][i] = fmaf(value[i], weight, sums[q][i]);
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
#pragma unroll
  for (unsigned step = kWarp / 2; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
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
