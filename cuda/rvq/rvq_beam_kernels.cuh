// The beam search of residual codebooks (ResidualEncoder of lib/rvq).
//
// A block of threads takes its rows through all stages, with the hypotheses of a row side by side as if they
// were rows: each warp has 16 of them, whole rows' worth of narrow beams, or a part of a wide one. A stage is
// as that of the greedy search (rvq_kernels.cuh), but for the limit. Of each hypothesis the entries fall in
// 64 classes, and the highest rough score of a class, less what it may be off, is below the score of a pair
// of hypothesis and entry; the B-th highest of all classes of a row's hypotheses therefore is below the B-th
// best score. What comes near that is scored exactly, and the B best pairs are kept, ranked as lib ranks
// them.
#pragma once

#include "cuda/rvq/rvq_kernels.cuh"
#include "lib/linalg/ordered_key.hpp"

namespace kvcodec::cuda {

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

}  // namespace kvcodec::cuda
