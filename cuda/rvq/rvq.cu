// Residual codebooks (lib/rvq): sums of entries straight from packed ids, and the greedy search for ids.
//
// Search. A block of threads takes its rows through all stages. Rough scores of a row with all entries come
// from the matrix units, of f16 roundings of both; with the bound of lib/linalg/nearest.hpp on what that
// costs, only entries whose rough score comes near the best one can be the nearest. A first pass over the
// entries finds the best rough score of each row, a second one scores exactly what comes near it (mostly one
// or two entries), so the ids are those of lib/. Then the entry is subtracted, and the next stage begins.
#include "cuda/runtime/kernel.cuh"
#include "cuda/rvq/rvq.cuh"
#include "lib/linalg/ordered_key.hpp"

namespace kvcodec::cuda {

/// Rows of a block of threads: 16 for each of its warps.
constexpr unsigned kRvqWarps = 4, kRvqWarpRows = 16, kRvqRows = kRvqWarps * kRvqWarpRows;
/// Halves behind a row in shared memory: eight rows, which are read together, lie in different banks.
constexpr unsigned kRvqSkew = 8;

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
    if (j + 4 <= width && reinterpret_cast<uintptr_t>(to) % sizeof(float4) == 0) {
      *reinterpret_cast<float4*>(to) = sum;
      continue;
    }
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
              __syncwarp();
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

// Beam search -------------------------------------------------------------------------------------
//
// ResidualEncoder of lib/rvq with more than one hypothesis. A block of threads takes its rows through all
// stages, with the hypotheses of a row side by side as if they were rows: each warp has 16 of them, whole
// rows' worth of narrow beams, or a part of a wide one. A stage is as that of the greedy search, except for the
// limit. Of each hypothesis the entries fall in 64 classes, and the highest rough score of a class, less what
// it may be off, is below the score of a pair of hypothesis and entry; the B-th highest of all classes of a
// row's hypotheses therefore is below the B-th best score. What comes near that is scored exactly, and the B
// best pairs are kept, ranked as lib ranks them.

/// How a block's 64 places are given to hypotheses.
struct BeamPlaces {
  unsigned beam;
  unsigned warps;     ///< of a row
  unsigned per_warp;  ///< rows of a warp, whole ones
  unsigned rows;      ///< of the block

  KVCODEC_HD explicit BeamPlaces(unsigned hypotheses)
      : beam(hypotheses),
        warps((hypotheses + kRvqWarpRows - 1) / kRvqWarpRows),
        per_warp(hypotheses <= kRvqWarpRows ? kRvqWarpRows / hypotheses : 1),
        rows(hypotheses <= kRvqWarpRows ? kRvqWarps * per_warp : kRvqWarps / warps) {}
  /// Row of the block that a warp's `own`-th row is.
  KVCODEC_HD unsigned row(unsigned warp, unsigned own) const {
    return warps == 1 ? warp * per_warp + own : warp / warps;
  }
  /// Place of a row's first hypothesis; the others follow.
  KVCODEC_HD unsigned first(unsigned row) const {
    return warps == 1 ? row / per_warp * kRvqWarpRows + row % per_warp * beam : row * warps * kRvqWarpRows;
  }
};

namespace rvq_detail {

/// A pair of hypothesis and entry.
struct Choice {
  float score;
  uint32_t hypothesis, id;
};
__device__ __forceinline__ bool before(const Choice& a, const Choice& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.hypothesis != b.hypothesis ? a.hypothesis < b.hypothesis : a.id < b.id;
}

/// A number that at least `wanted` of `count` values are not below, and few more; -infinity if so many are
/// not finite. The whole warp.
__device__ __forceinline__ float limit_of(const float* values, unsigned count, unsigned wanted) {
  const unsigned lane = threadIdx.x % kWarp;
  uint32_t low = ~0u, high = 0;  // keys of which all, and none behind, are not below
  unsigned real = 0;
  for (unsigned i = lane; i < count; i += kWarp)
    if (values[i] > -INFINITY) {
      const uint32_t key = static_cast<uint32_t>(ordered_key(values[i])) ^ 0x80000000u;
      low = key < low ? key : low, high = key > high ? key : high;
      ++real;
    }
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const uint32_t other_low = __shfl_xor_sync(kAllLanes, low, step),
                   other_high = __shfl_xor_sync(kAllLanes, high, step);
    low = other_low < low ? other_low : low, high = other_high > high ? other_high : high;
    real += __shfl_xor_sync(kAllLanes, real, step);
  }
  if (real < wanted) return -INFINITY;
  for (++high; high - low > 1;) {
    const uint32_t middle = low + (high - low) / 2;
    unsigned above = 0;
    for (unsigned i = lane; i < count; i += kWarp)
      above +=
          values[i] > -INFINITY && (static_cast<uint32_t>(ordered_key(values[i])) ^ 0x80000000u) >= middle;
    for (int step = kWarp / 2; step > 0; step /= 2) above += __shfl_xor_sync(kAllLanes, above, step);
    if (above < wanted) {
      high = middle;
      continue;
    }
    low = middle;
    if (above <= wanted + wanted / 4) break;
  }
  const auto key = static_cast<int32_t>(low ^ 0x80000000u);
  return float_of(static_cast<uint32_t>(key) ^ (static_cast<uint32_t>(key >> 31) >> 1));
}

/// Adds a choice to a list of at most `wanted`, or has it take the place of the last of them. The whole warp,
/// which alone has the list.
__device__ __forceinline__ void add_choice(const Choice& choice, unsigned wanted, Choice* list,
                                           uint32_t* count) {
  const unsigned lane = threadIdx.x % kWarp, there = *count;
  __syncwarp();
  unsigned place = there;
  if (there == wanted) {
    Choice last = list[0];
    place = 0;
    for (unsigned i = lane; i < wanted; i += kWarp)
      if (before(last, list[i])) last = list[i], place = i;
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const Choice other{__shfl_xor_sync(kAllLanes, last.score, step),
                         __shfl_xor_sync(kAllLanes, last.hypothesis, step),
                         __shfl_xor_sync(kAllLanes, last.id, step)};
      const unsigned other_place = __shfl_xor_sync(kAllLanes, place, step);
      if (before(last, other)) last = other, place = other_place;
    }
    if (!before(choice, last)) return;  // all lanes
    __syncwarp();                       // all have read the list
  }
  if (lane == 0) {
    list[place] = choice;
    if (there < wanted) *count = there + 1;
  }
  __syncwarp();
}

}  // namespace rvq_detail

/// Dynamic shared memory of rvq_beam: that of the greedy search, and the classes.
template <unsigned kSteps>
constexpr size_t rvq_beam_shared() {
  return rvq_encode_shared<kSteps>() + size_t{kRvqRows} * kRvqTile * sizeof(float);
}

/// Blocks of threads that a multiprocessor's registers are to be enough for; 0: as the compiler sees fit. The
/// narrowest rows would be left so few registers that some are spilled.
constexpr unsigned rvq_beam_blocks(unsigned steps) { return steps == 1 ? 5 : 0; }

template <unsigned kSteps>
__global__ void __launch_bounds__(kRvqWarps* kWarp, rvq_beam_blocks(kSteps))
    rvq_beam(RvqBooks books, RvqBeam beam) {
  using namespace rvq_detail;
  constexpr unsigned kDepth = 16 * kSteps, kStride = kDepth + kRvqSkew;
  KVCODEC_SHARED_ARRAY(float, offsets, kRvqRows);  // of hypotheses; -infinity where there is none
  KVCODEC_SHARED_ARRAY(float, inverses, kRvqRows);
  KVCODEC_SHARED_ARRAY(float, errors, kRvqRows);
  KVCODEC_SHARED_ARRAY(float, limits, kRvqRows);                        // [warp][its rows]
  KVCODEC_SHARED_ARRAY(uint32_t, counts, kRvqRows);                     // [warp][its rows]
  KVCODEC_SHARED_ARRAY(Choice, lists, kRvqWarps * kRvqMostHypotheses);  // [warp][its rows][beam]
  KVCODEC_SHARED_ARRAY(Choice, winners, kRvqRows);
  auto* const tiles = dynamic_shared<uint16_t>();
  auto* const classes =
      reinterpret_cast<float*>(tiles + size_t{2 * kRvqTile + kRvqRows} * kStride);  // [place][class]
  const BeamPlaces places(beam.beam);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, first_place = warp * kRvqWarpRows;
  uint16_t* const row_halves = tiles + 2 * kRvqTile * kStride + first_place * kStride;

  /// What a place of this warp is.
  struct Place {
    unsigned own;  // which of the warp's rows
    unsigned hypothesis;
    uint64_t row;
    bool real;
  };
  const auto place_of = [&](unsigned r) {
    Place at{};
    at.own = places.warps == 1 ? r / beam.beam : 0;
    const unsigned row = places.row(warp, at.own);
    at.hypothesis = first_place + r - places.first(row);
    at.row = uint64_t{blockIdx.x} * places.rows + row;
    at.real =
        at.own < places.per_warp && row < places.rows && at.hypothesis < beam.beam && at.row < beam.count;
    return at;
  };

  if (lane < kRvqWarpRows) {
    const Place at = place_of(lane);
    offsets[first_place + lane] = at.real && at.hypothesis == 0 ? 0 : -INFINITY;
  }
  __syncwarp();
  for (unsigned stage = 0; stage < books.stages; ++stage) {
    const float* const entries = books.entries + size_t{stage} * books.count * books.padded;
    const float* const bias = books.bias + size_t{stage} * books.tiles * kRvqTile;
    const uint16_t* const halves = books.halves + size_t{stage} * books.tiles * kRvqTile * kDepth;
    const RvqScreen screen = books.screens[stage];
    const bool last_stage = stage + 1 == books.stages;
    const unsigned wanted = last_stage ? 1 : beam.beam;
    // Where the hypotheses of this stage are, and where those of the next go.
    // (Chosen without an index: an argument that is indexed would be copied to memory.)
    const bool odd = stage % 2 != 0;
    const float* const old_residuals = odd ? beam.residuals[1] : beam.residuals[0];
    float* const new_residuals = odd ? beam.residuals[0] : beam.residuals[1];
    const uint32_t* const old_paths = odd ? beam.paths[1] : beam.paths[0];
    uint32_t* const new_paths = odd ? beam.paths[0] : beam.paths[1];
    const auto residual = [&](uint64_t row, unsigned hypothesis) {
      return stage == 0 ? beam.rows + row * books.padded
                        : old_residuals + (row * beam.beam + hypothesis) * books.padded;
    };
    for (unsigned r = 0; r < kRvqWarpRows; ++r) {
      const Place at = place_of(r);
      const float offset = offsets[first_place + r];
      const RowScreen row = screen_row(offset > -INFINITY ? residual(at.row, at.hypothesis) : nullptr,
                                       books.padded, kDepth, screen, row_halves + r * kStride);
      if (lane == 0) {
        inverses[first_place + r] = row.inverse;
        // The bound, once, and the roundings of adding offset and bound.
        errors[first_place + r] =
            0.5f * row.margin + 0x1p-21f * (row.most + (offset > -INFINITY ? fabsf(offset) : 0));
        counts[first_place + r] = 0;
      }
    }
    __syncwarp();
    uint32_t rows[kSteps][4];
    for (unsigned k = 0; k < kSteps; ++k)
      load_matrices(rows[k], row_halves + (lane / 8 % 2 * 8 + lane % 8) * kStride + k * 16 + lane / 16 * 8);
    const unsigned own_places[2] = {lane / 4, lane / 4 + 8};
    float inverse[2], error[2], offset[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      inverse[half] = inverses[first_place + own_places[half]];
      error[half] = errors[first_place + own_places[half]];
      offset[half] = offsets[first_place + own_places[half]];
    }

    constexpr unsigned kPlaces = kRvqTile / 8;
    float highest[kPlaces][4];
#pragma unroll
    for (unsigned place = 0; place < kPlaces; ++place)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) highest[place][i] = -INFINITY;
    for_products<kSteps, true>(books, halves, tiles, rows,
                               [&](const float(&products)[4], unsigned column, unsigned place) {
#pragma unroll
                                 for (unsigned i = 0; i < 4; ++i) {
                                   const float score = products[i] * inverse[i / 2] + bias[column + i % 2];
                                   highest[place][i] = score > highest[place][i] ? score : highest[place][i];
                                 }
                               });
#pragma unroll
    for (unsigned place = 0; place < kPlaces; ++place)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        classes[(first_place + own_places[i / 2]) * kRvqTile + place * 8 + lane % 4 * 2 + i % 2] =
            (highest[place][i] - error[i / 2]) + offset[i / 2];
    __syncthreads();
    for (unsigned own = 0; own < places.per_warp; ++own) {
      const unsigned row = places.row(warp, own);
      if (row >= places.rows) continue;  // a whole warp
      const float limit = limit_of(classes + places.first(row) * kRvqTile, beam.beam * kRvqTile, wanted);
      if (lane == 0) limits[first_place + own] = limit;
    }
    __syncwarp();
    float limit[2];
    bool counts_here[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const Place at = place_of(own_places[half]);
      limit[half] = at.real ? limits[first_place + at.own] : 0;
      counts_here[half] = at.real && offset[half] > -INFINITY;
    }

    for_products<kSteps>(
        books, halves, tiles, rows, [&](const float(&products)[4], unsigned column, unsigned) {
#pragma unroll  // so that what is of either row stays in registers
          for (unsigned i = 0; i < 4; ++i) {
            const unsigned id = column + i % 2;
            const float score = (products[i] * inverse[i / 2] + bias[id] + error[i / 2]) + offset[i / 2];
            const bool near = counts_here[i / 2] && id < books.count && !(score < limit[i / 2]);
            // The warp scores what is near exactly, one after the other.
            for (unsigned left = __ballot_sync(kAllLanes, near); left != 0; left &= left - 1) {
              const int from = __ffs(static_cast<int>(left)) - 1;
              const unsigned near_id = __shfl_sync(kAllLanes, id, from);
              const unsigned r = __shfl_sync(kAllLanes, own_places[i / 2], from);
              const Place at = place_of(r);
              const float exact =
                  exact_score(residual(at.row, at.hypothesis), entries + size_t{near_id} * books.padded,
                              books.padded, bias[near_id]) +
                  offsets[first_place + r];
              add_choice({exact, at.hypothesis, near_id}, wanted,
                         lists + warp * kRvqMostHypotheses + at.own * beam.beam,
                         counts + first_place + at.own);
            }
          }
        });
    __syncthreads();

    // The first warp of each row ranks what its warps have found.
    for (unsigned own = 0; own < places.per_warp && warp % places.warps == 0; ++own) {
      const unsigned row = places.row(warp, own);
      if (row >= places.rows) continue;  // a whole warp
      Choice* const to = winners + places.first(row);
      for (unsigned b = lane; b < beam.beam; b += kWarp) to[b] = {-INFINITY, 0, 0};
      __syncwarp();
      const auto for_found = [&](auto&& body) {
        for (unsigned w = warp; w < warp + places.warps; ++w) {
          const Choice* const list = lists + w * kRvqMostHypotheses + own * beam.beam;
          body(list, counts[w * kRvqWarpRows + own]);
        }
      };
      for_found([&](const Choice* list, unsigned count) {
        for (unsigned i = lane; i < count; i += kWarp) {
          unsigned rank = 0;
          for_found([&](const Choice* others, unsigned other_count) {
            for (unsigned j = 0; j < other_count; ++j) rank += before(others[j], list[i]);
          });
          if (rank < wanted) to[rank] = list[i];
        }
      });
    }
    __syncthreads();

    for (unsigned r = 0; r < kRvqWarpRows; ++r) {
      const Place at = place_of(r);
      if (!at.real) continue;  // a whole warp
      const Choice choice = winners[first_place + r];
      const uint32_t* const from = old_paths + (at.row * beam.beam + choice.hypothesis) * books.stages;
      if (last_stage) {
        if (at.hypothesis != 0) continue;
        uint32_t* const to = beam.ids + at.row * books.stages;
        for (unsigned s = lane; s < stage; s += kWarp) to[s] = from[s];
        if (lane == 0) to[stage] = choice.id;
        continue;
      }
      uint32_t* const to = new_paths + (at.row * beam.beam + at.hypothesis) * books.stages;
      for (unsigned s = lane; s < stage; s += kWarp) to[s] = from[s];
      if (lane == 0) to[stage] = choice.id;
      // As lib subtracts: element j's square goes to lane j mod 16, the lanes are added as a tree.
      const float* const row = residual(at.row, choice.hypothesis);
      const float* const entry = entries + size_t{choice.id} * books.padded;
      float* const left = new_residuals + (at.row * beam.beam + at.hypothesis) * books.padded;
      float energy = 0;
      for (unsigned j = lane % 16; j < books.padded; j += 16) {
        const float difference = row[j] - entry[j];
        if (lane < 16) left[j] = difference;
        energy += difference * difference;
      }
      for (int step = 8; step > 0; step /= 2) energy += __shfl_xor_sync(kAllLanes, energy, step);
      if (lane == 0) offsets[first_place + r] = choice.score > -INFINITY ? -energy / 2 : -INFINITY;
    }
    __syncwarp();  // other warps read these residuals and paths after barriers of the next stage only
  }
}

// Sums of outer products of training, in double ---------------------------------------------------

/// Elements of a block: a warp for each of so many rows, a lane per column.
constexpr unsigned kOuterRows = 8;

/// A thread per element, which goes over all entries: the order of its sum is that of the entries.
__global__ void __launch_bounds__(kOuterRows* kWarp)
    outer_sums(const double* rows, const double* weights, const double* others, uint32_t count, uint32_t n,
               uint32_t m, double* out) {
  const unsigned i = blockIdx.y * kOuterRows + threadIdx.x / kWarp;
  const unsigned j = blockIdx.x * kWarp + threadIdx.x % kWarp;
  if (i >= n || j >= m) return;
  double sum = 0;
  for (unsigned e = 0; e < count; ++e)
    sum += rows[size_t{e} * n + i] * weights[e] * others[size_t{e} * m + j];
  out[size_t{i} * m + j] = sum;
}

// Launchers ---------------------------------------------------------------------------------------

Status run_rvq_decode(const RvqBooks& books, const WordStream& ids, uint64_t first_id, unsigned id_bits,
                      size_t rows, unsigned width, float* out, size_t stride, StreamHandle stream) {
  constexpr unsigned kThreads = 256;
  constexpr uint64_t kMostBlocks = 1 << 16;  // beyond, threads take several places
  const uint64_t wanted = (rows * uint64_t{(width + 3) / 4} + kThreads - 1) / kThreads;
  return launch(rvq_decode, static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks), kThreads, 0,
                stream, books, ids, first_id, id_bits, uint64_t{rows}, width, out, stride);
}

Status run_rvq_encode(const RvqBooks& books, float* residuals, size_t rows, uint32_t* ids,
                      StreamHandle stream) {
  const auto blocks = static_cast<unsigned>((rows + kRvqRows - 1) / kRvqRows);
  const auto run = [&](auto kernel, size_t shared) {
    return launch(kernel, blocks, kRvqWarps * kWarp, shared, stream, books, residuals, uint64_t{rows}, ids);
  };
  switch (rvq_depth(books.padded)) {
    case 16:
      return run(rvq_encode<1>, rvq_encode_shared<1>());
    case 32:
      return run(rvq_encode<2>, rvq_encode_shared<2>());
    case 64:
      return run(rvq_encode<4>, rvq_encode_shared<4>());
    case 128:
      return run(rvq_encode<8>, rvq_encode_shared<8>());
    default:
      return run(rvq_encode<16>, rvq_encode_shared<16>());
  }
}

Status run_rvq_beam(const RvqBooks& books, const RvqBeam& beam, StreamHandle stream) {
  const BeamPlaces places(beam.beam);
  const auto blocks = static_cast<unsigned>((beam.count + places.rows - 1) / places.rows);
  const auto run = [&](auto kernel, size_t shared) {
    return launch(kernel, blocks, kRvqWarps * kWarp, shared, stream, books, beam);
  };
  switch (rvq_depth(books.padded)) {
    case 16:
      return run(rvq_beam<1>, rvq_beam_shared<1>());
    case 32:
      return run(rvq_beam<2>, rvq_beam_shared<2>());
    case 64:
      return run(rvq_beam<4>, rvq_beam_shared<4>());
    case 128:
      return run(rvq_beam<8>, rvq_beam_shared<8>());
    default:
      return run(rvq_beam<16>, rvq_beam_shared<16>());
  }
}

Status run_outer_sums(const double* rows, const double* weights, const double* others, uint32_t count,
                      uint32_t n, uint32_t m, double* out, StreamHandle stream) {
  return launch(outer_sums, dim3((m + kWarp - 1) / kWarp, (n + kOuterRows - 1) / kOuterRows),
                kOuterRows * kWarp, 0, stream, rows, weights, others, count, n, m, out);
}

}  // namespace kvcodec::cuda
