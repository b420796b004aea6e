// Attention over some tokens, and joining what comes of them (lib/attention/attention.hpp).
#include "cuda/attention/attention.cuh"
#include "cuda/runtime/kernel.cuh"

namespace kvcodec::cuda {

constexpr unsigned kAttentionWarps = 8;
static_assert(kAttentionWarps >= kMaxQueries);  // a warp per query works out its weights

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
template <unsigned kQueries, unsigned kLanes>
__global__ void __launch_bounds__(kAttentionWarps* kWarp) attention_items(AttentionItems all) {
  constexpr unsigned kRowsAtOnce = kWarp / kLanes, kStep = kRowsAtOnce * kAttentionWarps;
  constexpr unsigned kAhead = kQueries <= 4 ? 4 : 2;
  KVCODEC_SHARED_ARRAY(float, weights, kQueries* kSplitTokens);
  KVCODEC_SHARED_ARRAY(float, results, kQueries* kLanes * 8);
  const AttentionItem item = all.items[blockIdx.x];
  const unsigned dims = all.dims;
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
        load_vector(query[q], all.queries + size_t{item.query + q} * dims + j);
    }
    constexpr unsigned kSums = kAhead * kQueries, kHeld = kSums > kLanes ? kSums / kLanes : 1;
    const unsigned held = lane % kLanes * kSums / kLanes;  // the first sum that this lane gets
    const bool writes = kSums >= kLanes || lane % (kLanes / kSums) == 0;
    for (unsigned first = 0; first < item.count; first += kAhead * kStep) {
      float keys[kAhead][8] = {};
      if (reads) {
#pragma unroll
        for (unsigned n = 0; n < kAhead; ++n) load_vector(keys[n], item.keys + token_of(first, n) * dims + j);
      }
      float sums[kSums] = {};
#pragma unroll
      for (unsigned n = 0; n < kAhead; ++n)
#pragma unroll
        for (unsigned q = 0; q < kQueries; ++q)
#pragma unroll
          for (unsigned i = 0; i < 8; ++i)
            sums[n * kQueries + q] = fmaf(keys[n][i], query[q][i], sums[n * kQueries + q]);
      sum_over_lanes<kLanes, kSums>(sums);
#pragma unroll
      for (unsigned i = 0; i < kHeld; ++i) {
        const unsigned q = (held + i) % kQueries, t = first + (held + i) / kQueries * kStep + own;
        if (writes && t < item.count) weights[q * kSplitTokens + t] = sums[i];
      }
    }
  }
  __syncthreads();

  // Weights: a warp per query.
  if (warp < kQueries) {
    float* of_query = weights + warp * kSplitTokens;
    float largest = -INFINITY, sum = 0;
    for (unsigned t = lane; t < item.count; t += kWarp) largest = fmaxf(largest, of_query[t]);
    largest = largest_of_lanes(largest);
    for (unsigned t = lane; t < item.count; t += kWarp) {
      const float weight = expf(of_query[t] - largest);
      of_query[t] = weight;
      sum += weight;
    }
    sum = sum_of_lanes(sum);
    if (lane == 0) {
      float* state = all.states + (size_t{blockIdx.x} * kQueries + warp) * 2;
      state[0] = largest, state[1] = sum;
    }
  }
  __syncthreads();

  // Sums of values.
  float sums[kQueries][8] = {};
  for (unsigned first = 0; first < item.count; first += kAhead * kStep) {
    float values[kAhead][8] = {};
    if (reads) {
#pragma unroll
      for (unsigned n = 0; n < kAhead; ++n)
        load_vector(values[n], item.values + token_of(first, n) * dims + j);
    }
#pragma unroll
    for (unsigned n = 0; n < kAhead; ++n) {
      const unsigned t = first + n * kStep + own;
      if (t >= item.count) break;
#pragma unroll
      for (unsigned q = 0; q < kQueries; ++q) {
        const float weight = weights[q * kSplitTokens + t];
#pragma unroll
        for (unsigned i = 0; i < 8; ++i) sums[q][i] = fmaf(values[n][i], weight, sums[q][i]);
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
    all.sums[(size_t{blockIdx.x} * kQueries + q) * dims + dim] =
        results[(q * 8 + dim % 8) * kLanes + dim / 8];
  }
}

/// A block per result.
__global__ void attention_join(AttentionItems items, const AttentionResult* results, float* out) {
  const AttentionResult result = results[blockIdx.x];
  float largest = -INFINITY;
  for (unsigned i = result.first_item + threadIdx.x % kWarp; i < result.end_item; i += kWarp)
    largest = fmaxf(largest, items.states[(size_t{i} * items.queries_each + result.query) * 2]);
  largest = largest_of_lanes(largest);
  constexpr unsigned kAhead = 16;  // items whose sums are on their way together
  for (unsigned j = threadIdx.x; j < items.dims; j += blockDim.x) {
    float total = 0, weight = 0;
    for (unsigned first = result.first_item; first < result.end_item; first += kAhead) {
      float2 state[kAhead];
      float sum[kAhead];
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        const unsigned item = first + i < result.end_item ? first + i : first;
        const size_t place = size_t{item} * items.queries_each + result.query;
        state[i] = reinterpret_cast<const float2*>(items.states)[place];
        sum[i] = items.sums[place * items.dims + j];
      }
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        if (first + i >= result.end_item) break;
        const float factor = expf(state[i].x - largest);
        weight += factor * state[i].y;
        total += factor * sum[i];
      }
    }
    out[size_t{blockIdx.x} * items.dims + j] = weight > 0 ? total / weight : 0;
  }
}

// Launchers ---------------------------------------------------------------------------------------

Status run_attention_items(const AttentionItems& items, StreamHandle stream) {
  return for_size<1, 2, 4, 8>(items.queries_each, [&]<unsigned kQueries>() {
    // As many lanes as a row has eighths.
    const auto kernel = items.dims <= 64    ? attention_items<kQueries, 8>
                        : items.dims <= 128 ? attention_items<kQueries, 16>
                                            : attention_items<kQueries, 32>;
    return launch(kernel, static_cast<unsigned>(items.count), kAttentionWarps * kWarp, 0, stream, items);
  });
}

Status run_attention_join(const AttentionItems& items, const AttentionResult* results, size_t count,
                          float* out, StreamHandle stream) {
  return launch(attention_join, static_cast<unsigned>(count), 128, 0, stream, items, results, out);
}

}  // namespace kvcodec::cuda
