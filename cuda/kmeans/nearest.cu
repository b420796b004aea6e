// Nearest entries by rough products on the matrix units and exact ones where they are near
// (lib/linalg/nearest.hpp).
#include "cuda/kmeans/nearest.cuh"
#include "cuda/runtime/kernel.cuh"
#include "cuda/runtime/peak_scale.cuh"
#include "cuda/runtime/row_sums.cuh"

namespace kvcodec::cuda {

constexpr unsigned kRowWarps = 8;  ///< of kernels that give a row to a warp

/// The largest value of a rough row is within [2^kRoughTop, 2^(kRoughTop + 1)): far from f16's overflow,
/// while what is 2^-24 of it is still there; products of two such and their sums are far from that of f32.
constexpr int kRoughTop = 10;

/// Bounds computed in floats are made larger by this: more than their own roundings, for up to 2^15
/// dimensions.
constexpr float kSlack = 1.01f;

/// A warp per row.
__global__ void __launch_bounds__(kRowWarps* kWarp) make_rough(RoughRows rows) {
  const unsigned row = blockIdx.x * kRowWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (row >= rows.count) return;  // a whole warp
  const float* exact = rows.exact + size_t{row} * rows.d;
  float peak = 0;
  for (unsigned j = lane; j < rows.d; j += kWarp) peak = fmaxf(peak, fabsf(exact[j]));
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(kAllLanes, peak, step));
  // Larger rows become infinite, and so does what is said of their error.
  const auto [inverse, factor] = peak_scale(fminf(peak, 0x1p100f), kRoughTop);
  uint16_t* rough = rows.rough + size_t{row} * rows.padded;
  float norm = 0, error = 0;  // of values over factor
  for (unsigned j = lane; j < rows.padded; j += kWarp) {
    const float value = j < rows.d ? exact[j] * inverse : 0;
    const uint16_t half = f16_from_float(value);
    const float off = value - f16_to_float(half);
    rough[j] = half;
    norm = fmaf(value, value, norm), error = fmaf(off, off, error);
  }
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2) {
    norm += __shfl_xor_sync(kAllLanes, norm, step);
    error += __shfl_xor_sync(kAllLanes, error, step);
  }
  if (lane == 0) {
    rows.factors[row] = factor;
    rows.norms[row] = sqrtf(norm) * kSlack * factor;
    rows.errors[row] = sqrtf(error) * kSlack * factor;
  }
}

__global__ void __launch_bounds__(256) find_largest(RoughRows rows, const float* bias, float* largest) {
  float norm = 0, error = 0, shift = 0;
  for (unsigned i = blockIdx.x * 256 + threadIdx.x; i < rows.count; i += gridDim.x * 256) {
    norm = fmaxf(norm, rows.norms[i]), error = fmaxf(error, rows.errors[i]);
    if (bias) shift = fmaxf(shift, fabsf(bias[i]));
  }
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2) {
    norm = fmaxf(norm, __shfl_xor_sync(kAllLanes, norm, step));
    error = fmaxf(error, __shfl_xor_sync(kAllLanes, error, step));
    shift = fmaxf(shift, __shfl_xor_sync(kAllLanes, shift, step));
  }
  if (threadIdx.x % kWarp == 0) {  // floats that are not negative are in the order of their bits
    auto* bits = reinterpret_cast<unsigned*>(largest);
    atomicMax(&bits[0], bits_of(norm));
    atomicMax(&bits[1], bits_of(error));
    atomicMax(&bits[2], bits_of(shift));
  }
}

// Rough products -----------------------------------------------------------------------------------

constexpr unsigned kPeakThreads = 256;  ///< 8 warps, two by four: each 64 rows by 32 entries
constexpr unsigned kPeakStages = 3;
/// Elements of a row of a tile in shared memory: 16 bytes more than kRoughStep, so that the 8 rows of a
/// matrix load lie in different banks.
constexpr unsigned kPeakRow = kRoughStep + 8;
constexpr size_t kPeakStageElements = 2 * kPeakTile * kPeakRow;
constexpr size_t kPeakSharedBytes = kPeakStages * kPeakStageElements * sizeof(uint16_t);
static_assert(kPeakTile * 4 * sizeof(Peak) <= kPeakSharedBytes);

/// The better of two peaks of one row, with the second best of both; of equal ones the lower id.
__device__ __forceinline__ Peak join(const Peak& a, const Peak& b) {
  const bool first = a.best > b.best || (a.best == b.best && a.id <= b.id);
  const Peak& win = first ? a : b;
  const Peak& lose = first ? b : a;
  return {win.best, fmaxf(win.second, lose.best), win.id};
}

/// Copies kPeakTile rows of kRoughStep elements from column k on; rows that are not there become zeros.
__device__ __forceinline__ void load_tile(uint16_t* shared, const RoughRows& rows, unsigned first,
                                          unsigned k) {
  constexpr unsigned kChunks = kRoughStep / 8;  // of 16 bytes
#pragma unroll
  for (unsigned i = threadIdx.x; i < kPeakTile * kChunks; i += kPeakThreads) {
    const unsigned row = i / kChunks, chunk = i % kChunks;
    const bool real = first + row < rows.count;
    copy_async16(shared + row * kPeakRow + chunk * 8,
                 rows.rough + size_t{real ? first + row : 0} * rows.padded + k + chunk * 8, real ? 16 : 0);
  }
}

__global__ void __launch_bounds__(kPeakThreads, 2)
    product_peaks(RoughRows rows, RoughRows entries, const float* bias, Peak* peaks) {
  auto* shared = dynamic_shared<uint16_t>();
  const unsigned first_entry = blockIdx.x * kPeakTile, first_row = blockIdx.y * kPeakTile;
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const unsigned warp_row = warp / 4 * 64, warp_entry = warp % 4 * 32;
  const unsigned steps = rows.padded / kRoughStep;

  const auto load = [&](unsigned step) {
    if (step < steps) {
      uint16_t* stage = shared + step % kPeakStages * kPeakStageElements;
      load_tile(stage, rows, first_row, step * kRoughStep);
      load_tile(stage + kPeakTile * kPeakRow, entries, first_entry, step * kRoughStep);
    }
    copy_async_commit();  // an empty group too, so that their number tells which step has arrived
  };
  for (unsigned step = 0; step < kPeakStages - 1; ++step) load(step);

  float sums[4][4][4] = {};  // [16 rows][8 entries]
  for (unsigned step = 0; step < steps; ++step) {
    copy_async_wait<kPeakStages - 2>();
    __syncthreads();  // the step is there for all, and the stage of the step before is free
    load(step + kPeakStages - 1);
    const uint16_t* of_rows = shared + step % kPeakStages * kPeakStageElements;
    const uint16_t* of_entries = of_rows + kPeakTile * kPeakRow;
#pragma unroll
    for (unsigned k = 0; k < kRoughStep; k += 16) {
      uint32_t a[4][4], b[2][4];
#pragma unroll
      for (unsigned m = 0; m < 4; ++m)
        load_matrices(a[m], of_rows + (warp_row + m * 16 + lane % 16) * kPeakRow + k + lane / 16 * 8);
#pragma unroll
      for (unsigned n = 0; n < 2; ++n)
        load_matrices(b[n], of_entries + (warp_entry + n * 16 + lane / 16 * 8 + lane % 8) * kPeakRow + k +
                                lane / 8 % 2 * 8);
#pragma unroll
      for (unsigned m = 0; m < 4; ++m)
#pragma unroll
        for (unsigned n = 0; n < 4; ++n)
          multiply_f16(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
  }
  copy_async_wait<0>();
  __syncthreads();  // shared memory is used anew

  float entry_factor[4][2], entry_bias[4][2];
  bool real[4][2];
#pragma unroll
  for (unsigned n = 0; n < 4; ++n)
#pragma unroll
    for (unsigned c = 0; c < 2; ++c) {
      const unsigned entry = first_entry + warp_entry + n * 8 + lane % 4 * 2 + c;
      real[n][c] = entry < entries.count;
      entry_factor[n][c] = real[n][c] ? entries.factors[entry] : 0;
      entry_bias[n][c] = real[n][c] && bias ? bias[entry] : 0;
    }
  auto* own_peaks = reinterpret_cast<Peak*>(shared);  // [row][warp % 4]
#pragma unroll
  for (unsigned m = 0; m < 4; ++m)
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = warp_row + m * 16 + half * 8 + lane / 4;
      const float factor = first_row + row < rows.count ? rows.factors[first_row + row] : 0;
      Peak peak{-INFINITY, -INFINITY, 0xffffffffu};
#pragma unroll
      for (unsigned n = 0; n < 4; ++n)
#pragma unroll
        for (unsigned c = 0; c < 2; ++c) {
          const float score = sums[m][n][half * 2 + c] * factor * entry_factor[n][c] + entry_bias[n][c];
          const unsigned entry = first_entry + warp_entry + n * 8 + lane % 4 * 2 + c;
          if (real[n][c]) peak = join(peak, {score, -INFINITY, entry});
        }
#pragma unroll
      for (unsigned step = 1; step < 4; step *= 2) {
        Peak other;
        other.best = __shfl_xor_sync(kAllLanes, peak.best, step);
        other.second = __shfl_xor_sync(kAllLanes, peak.second, step);
        other.id = __shfl_xor_sync(kAllLanes, peak.id, step);
        peak = join(peak, other);
      }
      if (lane % 4 == 0) own_peaks[row * 4 + warp % 4] = peak;
    }
  __syncthreads();
  if (threadIdx.x < kPeakTile && first_row + threadIdx.x < rows.count) {
    const Peak* four = own_peaks + threadIdx.x * 4;
    peaks[size_t{first_row + threadIdx.x} * gridDim.x + blockIdx.x] =
        join(join(four[0], four[1]), join(four[2], four[3]));
  }
}

// Exact scores -------------------------------------------------------------------------------------

/// lib's score of a row with an entry, by 16 lanes: element i in lane i mod 16, products rounded before they
/// are added, the lanes as a tree. All 32 lanes call it, each half with an entry of its own.
__device__ __forceinline__ float exact_score(const float* row, const float* entry, unsigned d) {
  const unsigned lane = threadIdx.x % 16;
  float sum = 0;
  for (unsigned j = lane; j < d; j += 16) sum += row[j] * entry[j];
#pragma unroll
  for (unsigned step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}

/// A warp per row.
__global__ void __launch_bounds__(kRowWarps* kWarp)
    settle(RoughRows rows, RoughRows entries, const float* bias, const float* largest, const Peak* all_peaks,
           uint32_t* ids, float* scores) {
  const unsigned row = blockIdx.x * kRowWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (row >= rows.count) return;  // a whole warp
  const unsigned tiles = (entries.count + kPeakTile - 1) / kPeakTile;
  const Peak* peaks = all_peaks + size_t{row} * tiles;
  float most = -INFINITY;
  for (unsigned t = lane; t < tiles; t += kWarp) most = fmaxf(most, peaks[t].best);
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));

  const float norm = rows.norms[row], error = rows.errors[row];
  // Roundings of sums of d products, in either order and with the hardware's truncation, are below (d + 8)
  // 2^-22 of the product of the norms; adding the bias rounds once more on either side.
  const float bound =
      kSlack * (error * largest[0] + (norm + error) * largest[1] +
                (static_cast<float>(rows.d) + 8) * 0x1p-22f * (norm + error) * (largest[0] + largest[1]) +
                0x1p-22f * (fabsf(most) + largest[2]));
  // A row beyond floats has no bound: then all is scored.
  const float least = bound < INFINITY ? most - 2 * bound : -INFINITY;

  const float* exact = rows.exact + size_t{row} * rows.d;
  float best = -INFINITY;
  uint32_t best_id = 0xffffffffu;
  const auto look = [&](unsigned entry) {  // both halves of the warp, each with its entry; ids rise
    const bool real = entry < entries.count;
    float score = exact_score(exact, entries.exact + size_t{real ? entry : 0} * rows.d, rows.d);
    if (bias && real) score += bias[entry];
    if (real && (score > best || best_id == 0xffffffffu)) best = score, best_id = entry;
  };
  for (unsigned from = 0; from < tiles; from += kWarp) {
    const unsigned t = from + lane;
    const bool some = t < tiles && !(peaks[t].best < least), many = t < tiles && !(peaks[t].second < least);
    const unsigned with_some = __ballot_sync(kAllLanes, some), with_many = __ballot_sync(kAllLanes, many);
    for (unsigned rest = with_some | with_many; rest != 0; rest &= rest - 1) {
      const unsigned tile = from + static_cast<unsigned>(__ffs(static_cast<int>(rest))) - 1;
      if (with_many >> (tile - from) & 1) {
        for (unsigned i = 0; i < kPeakTile; i += 2) look(tile * kPeakTile + i + lane / 16);
      } else {
        look(lane < 16 ? peaks[tile].id : entries.count);
      }
    }
  }
  // The two halves have looked at different entries.
  const float other = __shfl_xor_sync(kAllLanes, best, 16);
  const uint32_t other_id = __shfl_xor_sync(kAllLanes, best_id, 16);
  if (other_id != 0xffffffffu &&
      (best_id == 0xffffffffu || other > best || (other == best && other_id < best_id)))
    best = other, best_id = other_id;
  if (lane == 0) {
    ids[row] = best_id;
    scores[row] = best;
  }
}

// Means --------------------------------------------------------------------------------------------

/// A block per cluster, a thread per dimension: sums in the order of the ids.
__global__ void __launch_bounds__(128)
    cluster_means(const float* rows, uint32_t d, const uint64_t* offsets, const uint32_t* ids, float* means) {
  const uint64_t first = offsets[blockIdx.x], end = offsets[blockIdx.x + 1];
  if (first >= end) return;
  for (unsigned j = threadIdx.x; j < d; j += blockDim.x)
    means[size_t{blockIdx.x} * d + j] =
        static_cast<float>(sum_of_rows(rows, d, j, ids, first, end) / static_cast<double>(end - first));
}

// Launchers ---------------------------------------------------------------------------------------

namespace {

unsigned divide_up(unsigned n, unsigned by) { return n / by + (n % by != 0); }

}  // namespace

Status run_make_rough(const RoughRows& rows, StreamHandle stream) {
  return launch(make_rough, divide_up(rows.count, kRowWarps), kRowWarps * kWarp, 0, stream, rows);
}

Status run_largest(const RoughRows& rows, const float* bias, float* largest, StreamHandle stream) {
  const unsigned blocks = divide_up(rows.count, 256);
  return launch(find_largest, blocks < 64 ? blocks : 64, 256, 0, stream, rows, bias, largest);
}

Status run_peaks(const RoughRows& rows, const RoughRows& entries, const float* bias, Peak* peaks,
                 StreamHandle stream) {
  return launch(product_peaks, dim3(divide_up(entries.count, kPeakTile), divide_up(rows.count, kPeakTile)),
                kPeakThreads, kPeakSharedBytes, stream, rows, entries, bias, peaks);
}

Status run_settle(const RoughRows& rows, const RoughRows& entries, const float* bias, const float* largest,
                  const Peak* peaks, uint32_t* ids, float* scores, StreamHandle stream) {
  return launch(settle, divide_up(rows.count, kRowWarps), kRowWarps * kWarp, 0, stream, rows, entries, bias,
                largest, peaks, ids, scores);
}

Status run_means(const float* rows, uint32_t d, const uint64_t* offsets, const uint32_t* ids,
                 uint32_t clusters, float* means, StreamHandle stream) {
  return launch(cluster_means, clusters, 128, 0, stream, rows, d, offsets, ids, means);
}

}  // namespace kvcodec::cuda
