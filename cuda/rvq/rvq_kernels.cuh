// Residual codebooks (lib/rvq): sums of entries straight from packed ids, and the greedy search for ids.
//
// Search. A block of threads takes its rows through all stages. Rough scores of a row with all entries come
// from the matrix units, of f16 roundings of both; with the bound of lib/linalg/nearest.hpp on what that
// costs, only entries whose rough score comes near the best one can be the nearest. A first pass over the
// entries finds the best rough score of each row, a second one scores exactly what comes near it (mostly one
// or two entries), so the ids are those of lib/. Then the entry is subtracted, and the next stage begins.
#pragma once

#include "cuda/runtime/kernel.cuh"
#include "cuda/rvq/rvq.cuh"

namespace kvcodec::cuda {

/// Rows of a block of threads: 16 for each of its warps.
inline constexpr unsigned kRvqWarps = 4, kRvqWarpRows = 16, kRvqRows = kRvqWarps * kRvqWarpRows;
/// Halves behind a row in shared memory: eight rows, which are read together, lie in different banks.
inline constexpr unsigned kRvqSkew = 8;

/// A thread per four neighbouring elements of a row.
__global__ void rvq_decode(RvqBooks books, WordStream ids, uint64_t first_id, unsigned id_bits, uint64_t rows,
                           unsigned width, float* out, size_t stride) {
  const unsigned quads = (width + 3) / 4;
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * quads; i += threads) {
    // A division of 64 bits takes longer than a sum.
    const uint64_t row = i >> 32 == 0 ? static_cast<uint32_t>(i) / quads : i / quads;
    const auto j = static_cast<unsigned>(i - row * quads) * 4;
    float4 sum = make_float4(0, 0, 0, 0);
    uint64_t bit = (first_id + row * books.stages) * id_bits;
    const float* entries = books.entries + j;
    for (unsigned s = 0; s < books.stages; ++s) {
      const uint32_t id = ids.bits(bit, id_bits);
      const float4 entry = *reinterpret_cast<const float4*>(entries + size_t{id} * books.padded);
      sum.x += entry.x, sum.y += entry.y, sum.z += entry.z, sum.w += entry.w;
      bit += id_bits;
      entries += size_t{books.count} * books.padded;
    }
    float* const to = out + row * stride + j;
    to[0] = sum.x;
    if (j + 1 < width) to[1] = sum.y;
    if (j + 2 < width) to[2] = sum.z;
    if (j + 3 < width) to[3] = sum.w;
  }
}

namespace rvq_detail {

__device__ __forceinline__ float warp_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
__device__ __forceinline__ float warp_largest(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, value, step);
    value = other > value ? other : value;
  }
  return value;
}

/// The power of two that brings a magnitude to [1, 2), as far as there is one.
__device__ __forceinline__ float scale_of(float magnitude) {
  const uint32_t exponent = bits_of(magnitude) >> 23 & 0xff;
  if (exponent == 0) return 1;  // its halves may be zeros; the bound knows
  return float_of((254 - (exponent < 253 ? exponent : 253)) << 23);
}

/// The score of lib/linalg/nearest.hpp, the same in all lanes: element i in lane i mod 16, lanes added as a
/// tree.
__device__ __forceinline__ float exact_score(const float* row, const float* entry, unsigned padded,
                                             float bias) {
  float sum = 0;
  for (unsigned j = threadIdx.x % 16; j < padded; j += 16) sum += row[j] * entry[j];
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum + bias;
}

/// Writes the halves of a row (zeros for none) and gives what its rough scores are to be multiplied by, twice
/// the most that these are off, and their magnitude at most.
struct RowScreen {
  float inverse, margin, most;
};
__device__ __forceinline__ RowScreen screen_row(const float* row, unsigned padded, unsigned depth,
                                                const RvqScreen& screen, uint16_t* halves) {
  const unsigned lane = threadIdx.x % kWarp;
  float largest = 0;
  if (row)
    for (unsigned j = lane; j < padded; j += kWarp) largest = fmaxf(largest, fabsf(row[j]));
  const float scale = scale_of(warp_largest(largest));
  float squares = 0, rounding_squares = 0;
  for (unsigned j = lane; j < depth; j += kWarp) {
    const float value = row && j < padded ? row[j] * scale : 0.0f;
    const uint16_t half = f16_from_float(value);
    const float rounding = value - f16_to_float(half);
    squares += value * value;
    rounding_squares += rounding * rounding;
    halves[j] = half;
  }
  // A little more than they are, for the roundings of these sums themselves.
  const float norm = sqrtf(warp_sum(squares)) * 1.0001f / scale;
  const float rounding = sqrtf(warp_sum(rounding_squares)) * 1.0001f / scale;
  // Rounded operands; sums of the matrix units, whose additions may lose the last of 23 bits, 16 at a time;
  // the exact score's own roundings and the bias.
  const float both = (norm + rounding) * (screen.norm + screen.rounding);
  const float off = rounding * screen.norm + (norm + rounding) * screen.rounding +
                    static_cast<float>(depth) * 0x1p-21f * both + 0x1p-22f * (both + screen.bias) + 1e-37f;
  return {1 / scale / screen.scale, 2.01f * off, both + screen.bias};
}

/// Calls body(scores, column, place) for all tiles of entries: scores[i] is the rough product of row
/// lane / 4 + 8 (i / 2) of the warp with entry column + i % 2; place = column / 8 in the tile, a constant for
/// bodies that ask for unrolled ones. All threads of the block.
template <unsigned kSteps, bool kUnrolled = false, class Body>
__device__ __forceinline__ void for_products(const RvqBooks& books, const uint16_t* halves, uint16_t* tiles,
                                             const uint32_t (&rows)[kSteps][4], Body&& body) {
  constexpr unsigned kDepth = 16 * kSteps, kStride = kDepth + kRvqSkew, kTileHalves = kRvqTile * kStride;
  const unsigned lane = threadIdx.x % kWarp, matrix = lane / 8, row = lane % 8;
  const auto load = [&](unsigned tile) {
    constexpr unsigned kPieces = kDepth / 8;
    uint16_t* const to = tiles + tile % 2 * kTileHalves;
    for (unsigned i = threadIdx.x; i < kRvqTile * kPieces; i += blockDim.x)
      copy_async16(to + i / kPieces * kStride + i % kPieces * 8,
                   halves + (size_t{tile} * kRvqTile + i / kPieces) * kDepth + i % kPieces * 8);
  };
  load(0);
  copy_async_commit();
  for (unsigned tile = 0; tile < books.tiles; ++tile) {
    if (tile + 1 < books.tiles) load(tile + 1);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    const uint16_t* const from = tiles + tile % 2 * kTileHalves;
#pragma unroll(kUnrolled ? kRvqTile / 16 : 1)
    for (unsigned block = 0; block < kRvqTile; block += 16) {
      float low[4] = {}, high[4] = {};
      for (unsigned k = 0; k < kSteps; ++k) {
        uint32_t entries[4];
        load_matrices(entries, from + (block + matrix / 2 * 8 + row) * kStride + k * 16 + matrix % 2 * 8);
        multiply_f16(low, rows[k], entries[0], entries[1]);
        multiply_f16(high, rows[k], entries[2], entries[3]);
      }
      const unsigned column = tile * kRvqTile + block + lane % 4 * 2;
      body(low, column, block / 8);
      body(high, column + 8, block / 8 + 1);
    }
    __syncthreads();
  }
}

}  // namespace rvq_detail

/// Dynamic shared memory of rvq_encode: two tiles of entries and the rows.
template <unsigned kSteps>
constexpr size_t rvq_encode_shared() {
  return size_t{2 * kRvqTile + kRvqRows} * (16 * kSteps + kRvqSkew) * sizeof(uint16_t);
}

template <unsigned kSteps>
__global__ void rvq_encode(RvqBooks books, float* residuals, uint64_t count, uint32_t* ids) {
  using namespace rvq_detail;
  constexpr unsigned kDepth = 16 * kSteps, kStride = kDepth + kRvqSkew;
  KVCODEC_SHARED_ARRAY(float, best_scores, kRvqRows);
  KVCODEC_SHARED_ARRAY(uint32_t, best_ids, kRvqRows);
  KVCODEC_SHARED_ARRAY(float, inverses, kRvqRows);
  KVCODEC_SHARED_ARRAY(float, margins, kRvqRows);
  auto* const tiles = dynamic_shared<uint16_t>();
  const unsigned lane = threadIdx.x % kWarp, first_row = threadIdx.x / kWarp * kRvqWarpRows;
  uint16_t* const row_halves = tiles + 2 * kRvqTile * kStride + first_row * kStride;
  const uint64_t first = uint64_t{blockIdx.x} * kRvqRows + first_row;  // of this warp
  const unsigned own_rows[2] = {first_row + lane / 4, first_row + lane / 4 + 8};
  const auto residual = [&](unsigned r) {
    return first + r < count ? residuals + (first + r) * books.padded : nullptr;
  };
  for (unsigned stage = 0; stage < books.stages; ++stage) {
    const float* const entries = books.entries + size_t{stage} * books.count * books.padded;
    const float* const bias = books.bias + size_t{stage} * books.tiles * kRvqTile;
    const uint16_t* const halves = books.halves + size_t{stage} * books.tiles * kRvqTile * kDepth;
    const RvqScreen screen = books.screens[stage];
    for (unsigned r = 0; r < kRvqWarpRows; ++r) {
      const RowScreen row = screen_row(residual(r), books.padded, kDepth, screen, row_halves + r * kStride);
      if (lane == 0) {
        inverses[first_row + r] = row.inverse, margins[first_row + r] = row.margin;
        // An id that is one, whatever the scores are: with NaNs no comparison ever replaces it.
        best_scores[first_row + r] = -INFINITY, best_ids[first_row + r] = 0;
      }
    }
    __syncwarp();
    uint32_t rows[kSteps][4];
    for (unsigned k = 0; k < kSteps; ++k)
      load_matrices(rows[k], row_halves + (lane / 8 % 2 * 8 + lane % 8) * kStride + k * 16 + lane / 16 * 8);
    const float inverse[2] = {inverses[own_rows[0]], inverses[own_rows[1]]};

    float limit[2] = {-INFINITY, -INFINITY};  // first the best rough scores
    for_products<kSteps>(books, halves, tiles, rows,
                         [&](const float(&products)[4], unsigned column, unsigned) {
                           for (unsigned i = 0; i < 4; ++i) {
                             const float score = products[i] * inverse[i / 2] + bias[column + i % 2];
                             limit[i / 2] = score > limit[i / 2] ? score : limit[i / 2];
                           }
                         });
    for (unsigned half = 0; half < 2; ++half) {
      for (int step = 1; step <= 2; step *= 2) {  // the four lanes of a row
        const float other = __shfl_xor_sync(kAllLanes, limit[half], step);
        limit[half] = other > limit[half] ? other : limit[half];
      }
      limit[half] -= margins[own_rows[half]];
    }

    for_products<kSteps>(
        books, halves, tiles, rows, [&](const float(&products)[4], unsigned column, unsigned) {
          for (unsigned i = 0; i < 4; ++i) {
            const unsigned id = column + i % 2;
            const float score = products[i] * inverse[i / 2] + bias[id];
            const bool near =
                !(score < limit[i / 2]) && id < books.count && first + (own_rows[i / 2] - first_row) < count;
            // The warp scores what is near exactly, one after the other.
            for (unsigned left = __ballot_sync(kAllLanes, near); left != 0; left &= left - 1) {
              const int from = __ffs(static_cast<int>(left)) - 1;
              const unsigned near_id = __shfl_sync(kAllLanes, id, from);
              const unsigned r = __shfl_sync(kAllLanes, own_rows[i / 2] - first_row, from);
              const float exact = exact_score(residual(r), entries + size_t{near_id} * books.padded,
                                              books.padded, bias[near_id]);
              if (lane == 0) {
                const float best = best_scores[first_row + r];
                if (exact > best || (exact == best && near_id < best_ids[first_row + r])) {
                  best_scores[first_row + r] = exact;
                  best_ids[first_row + r] = near_id;
                }
              }
            }
          }
        });
    __syncwarp();
    for (unsigned r = 0; r < kRvqWarpRows; ++r) {
      float* const row = residual(r);
      if (!row) continue;  // all lanes
      const uint32_t id = best_ids[first_row + r];
      for (unsigned j = lane; j < books.padded; j += kWarp) row[j] -= entries[size_t{id} * books.padded + j];
      if (lane == 0) ids[(first + r) * books.stages + stage] = id;
    }
    __syncwarp();
  }
}

}  // namespace kvcodec::cuda
