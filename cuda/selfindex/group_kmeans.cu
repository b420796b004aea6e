// Rounds of k-means of groups of four channels. A lane has a group: a warp reads 32 groups of a token at
// once, and its sums lie in shared memory, where a lane has a bank of its own whichever entries are chosen.
#include "cuda/runtime/kernel.cuh"
#include "cuda/selfindex/group_kmeans.cuh"

namespace kvcodec::cuda {

constexpr unsigned kGroupWarps = 4;
constexpr unsigned kGroupValues = kGroupEntries * (kGroupDims + 1);  ///< of a group: sums and a count
constexpr size_t kGroupShared = (1 + kGroupWarps) * size_t{kGroupValues} * kWarp * sizeof(float);

/// sums[(piece * groups + g) * kGroupValues + entry * 5 + i]: channel i summed over the tokens of the piece
/// that chose the entry; i = 4: how many they are. Grid: (groups / 32, pieces).
__global__ void __launch_bounds__(kGroupWarps* kWarp)
    sum_groups(GroupShape shape, const float* rows, const float* entries, float* sums) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const size_t group = size_t{blockIdx.x} * kWarp + lane;
  float* const book = dynamic_shared<float>();  // [entry][4 channels, half the square][lane]
  float* const own = book + (1 + warp) * kGroupValues * kWarp;
  for (unsigned e = warp; e < kGroupEntries; e += kGroupWarps) {
    float square = 0;
#pragma unroll
    for (unsigned i = 0; i < kGroupDims; ++i) {
      const float value = entries[(group * kGroupEntries + e) * kGroupDims + i];
      book[(e * 5 + i) * kWarp + lane] = value;
      square = fmaf(value, value, square);
    }
    book[(e * 5 + 4) * kWarp + lane] = square / 2;
  }
  for (unsigned i = 0; i < kGroupValues; ++i) own[i * kWarp + lane] = 0;
  __syncthreads();
  const size_t begin = size_t{blockIdx.y} * kGroupTokens;
  const size_t end = shape.tokens - begin < kGroupTokens ? shape.tokens : begin + kGroupTokens;
  for (size_t token = begin + warp; token < end; token += kGroupWarps) {
    const float4 x = *reinterpret_cast<const float4*>(rows + (token * shape.groups + group) * kGroupDims);
    float best = -INFINITY;
    unsigned chosen = 0;
#pragma unroll
    for (unsigned e = 0; e < kGroupEntries; ++e) {
      const float* const entry = book + e * 5 * kWarp + lane;
      const float score =
          fmaf(x.x, entry[0],
               fmaf(x.y, entry[kWarp],
                    fmaf(x.z, entry[2 * kWarp], fmaf(x.w, entry[3 * kWarp], -entry[4 * kWarp]))));
      if (score > best) best = score, chosen = e;
    }
    float* const to = own + chosen * 5 * kWarp + lane;
    to[0] += x.x, to[kWarp] += x.y, to[2 * kWarp] += x.z, to[3 * kWarp] += x.w, to[4 * kWarp] += 1;
  }
  __syncthreads();
  for (unsigned i = warp; i < kGroupValues; i += kGroupWarps) {
    float sum = 0;
    for (unsigned w = 0; w < kGroupWarps; ++w) sum += book[((1 + w) * kGroupValues + i) * kWarp + lane];
    sums[(blockIdx.y * shape.groups + group) * kGroupValues + i] = sum;
  }
}

/// A thread per entry.
__global__ void __launch_bounds__(256) move_entries(GroupShape shape, const float* sums, float* entries) {
  const size_t at = size_t{blockIdx.x} * 256 + threadIdx.x;  // group * kGroupEntries + entry
  if (at >= shape.groups * kGroupEntries) return;
  double all[kGroupDims + 1] = {};
  for (size_t piece = 0; piece < shape.pieces(); ++piece)
#pragma unroll
    for (unsigned i = 0; i <= kGroupDims; ++i)
      all[i] += static_cast<double>(sums[(piece * shape.groups * kGroupEntries + at) * (kGroupDims + 1) + i]);
  if (all[kGroupDims] == 0) return;
#pragma unroll
  for (unsigned i = 0; i < kGroupDims; ++i)
    entries[at * kGroupDims + i] = static_cast<float>(all[i] / all[kGroupDims]);
}

// Launchers ---------------------------------------------------------------------------------------

Status run_group_round(const GroupShape& shape, const float* rows, float* entries, float* sums,
                       StreamHandle stream) {
  Status status = launch(
      sum_groups, dim3(static_cast<unsigned>(shape.groups / kWarp), static_cast<unsigned>(shape.pieces())),
      kGroupWarps * kWarp, kGroupShared, stream, shape, rows, static_cast<const float*>(entries), sums);
  if (status == 0)
    status = launch(move_entries, static_cast<unsigned>((shape.groups * kGroupEntries + 255) / 256), 256, 0,
                    stream, shape, static_cast<const float*>(sums), entries);
  return status;
}

}  // namespace kvcodec::cuda
