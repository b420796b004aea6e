// Residual codebooks (lib/rvq): sums of entries straight from packed ids, and the greedy search for ids.
//
// Search. A block of threads takes its rows through all stages. Rough scores of a row with all entries come
// from the matrix units, of both rounded to f16. By the bound of lib/linalg/nearest.hpp on their errors,
// only entries whose rough score comes near the best one can be the nearest. A first pass over the
// entries finds the best rough score of each row, a second one lists what comes near it (mostly one or two
// entries), which is then scored exactly, so the ids are those of lib/. Then the entry is subtracted, and the
// next stage begins.
#include "cuda/runtime/kernel.cuh"
#include "cuda/rvq/rvq.cuh"
#include "lib/linalg/ordered_key.hpp"

namespace kvcodec::cuda {

/// Rows of a block of threads: 16 for each of its warps.
constexpr unsigned kRvqWarps = 8, kRvqWarpRows = 16, kRvqRows = kRvqWarps * kRvqWarpRows;
/// Halves between rows in shared memory, so that eight rows, which are read together, lie in different banks.
constexpr unsigned kRvqSkew = 8;

/// A thread per four neighbouring elements of a row.
__global__ void rvq_decode(RvqBooks books, RvqSums sums) {
  const unsigned quads = (sums.width + 3) / 4;
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < sums.rows * quads; i += threads) {
    // A division of 64 bits takes longer than a sum.
    const uint64_t row = i >> 32 == 0 ? static_cast<uint32_t>(i) / quads : i / quads;
    const auto j = static_cast<unsigned>(i - row * quads) * 4;
    float4 sum = make_float4(0, 0, 0, 0);
    uint64_t bit = row * books.stages * sums.bits;
    const float* entries = books.entries + j;
    for (unsigned s = 0; s < books.stages; ++s) {
      const uint32_t id = sums.ids.bits(bit, sums.bits);
      const float4 entry = *reinterpret_cast<const float4*>(entries + size_t{id} * books.padded);
      sum.x += entry.x, sum.y += entry.y, sum.z += entry.z, sum.w += entry.w;
      bit += sums.bits;
      entries += size_t{books.count} * books.padded;
    }
    *reinterpret_cast<float4*>(sums.out + row * quads * 4 + j) = sum;
  }
}

namespace rvq_detail {

/// The power of two that brings a magnitude to [1, 2), or the nearest that is a float.
__device__ __forceinline__ float scale_of(float magnitude) {
  const uint32_t exponent = bits_of(magnitude) >> 23 & 0xff;
  if (exponent == 0) return 1;  // halves may become zeros, which the error bound covers
  return float_of((254 - (exponent < 253 ? exponent : 253)) << 23);
}

/// The score of lib/linalg/nearest.hpp of each half of the warp, whose lanes all get it: element i in lane i mod
/// 16, lanes added as a tree. All loads are under way at once; zeros behind the row add nothing.
template <unsigned kSteps>
__device__ __forceinline__ float exact_score(const float* row, const float* entry, unsigned padded,
                                             float bias) {
  row += threadIdx.x % 16, entry += threadIdx.x % 16;
  float values[kSteps], others[kSteps], sum = 0;
#pragma unroll
  for (unsigned step = 0; step < kSteps; ++step) {
    const bool real = step * 16 < padded;  // a multiple of 16
    values[step] = real ? row[step * 16] : 0, others[step] = real ? entry[step * 16] : 0;
  }
#pragma unroll
  for (unsigned step = 0; step < kSteps; ++step) sum += values[step] * others[step];
  return sum_of_lanes<16>(sum) + bias;
}

/// A row in the lanes of a warp, four neighbouring elements in each.
template <unsigned kSteps>
struct RowValues {
  static constexpr unsigned kQuads = (kSteps * 4 + kWarp - 1) / kWarp;
  float4 quads[kQuads];

  static __device__ __forceinline__ unsigned first(unsigned quad) {
    return (quad * kWarp + threadIdx.x % kWarp) * 4;
  }
  /// Zeros for no row.
  __device__ __forceinline__ void load(const float* row, unsigned padded) {
#pragma unroll
    for (unsigned i = 0; i < kQuads; ++i)
      quads[i] = row && first(i) < padded ? *reinterpret_cast<const float4*>(row + first(i))
                                          : make_float4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void subtract(const RowValues& other) {
#pragma unroll
    for (unsigned i = 0; i < kQuads; ++i)
      quads[i] = make_float4(quads[i].x - other.quads[i].x, quads[i].y - other.quads[i].y,
                             quads[i].z - other.quads[i].z, quads[i].w - other.quads[i].w);
  }
  __device__ __forceinline__ void store(float* row, unsigned padded) const {
#pragma unroll
    for (unsigned i = 0; i < kQuads; ++i)
      if (row && first(i) < padded) *reinterpret_cast<float4*>(row + first(i)) = quads[i];
  }
};

/// Rows of a warp that are loaded at the same time.
constexpr unsigned kRowsTogether = 4;

/// Sums over the row times scale: of the squares, and of the squared rounding errors.
struct RowSums {
  float scale = 1, squares = 0, rounding_squares = 0;
};

/// Writes the halves of a row.
template <unsigned kSteps>
__device__ __forceinline__ RowSums write_halves(const RowValues<kSteps>& row, uint16_t* halves) {
  float largest = 0;
#pragma unroll
  for (const float4& quad : row.quads)
    largest = fmaxf(fmaxf(fmaxf(largest, fabsf(quad.x)), fmaxf(fabsf(quad.y), fabsf(quad.z))), fabsf(quad.w));
  RowSums sums;
  sums.scale = scale_of(largest_of_lanes(largest));
#pragma unroll
  for (unsigned i = 0; i < RowValues<kSteps>::kQuads; ++i) {
    const float4& quad = row.quads[i];
    const float values[4] = {quad.x * sums.scale, quad.y * sums.scale, quad.z * sums.scale,
                             quad.w * sums.scale};
    uint64_t four = 0;
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      const uint16_t half = f16_from_float(values[c]);
      const float rounding = values[c] - f16_to_float(half);
      sums.squares = fmaf(values[c], values[c], sums.squares);
      sums.rounding_squares = fmaf(rounding, rounding, sums.rounding_squares);
      four |= uint64_t{half} << (16 * c);
    }
    const unsigned j = RowValues<kSteps>::first(i);
    if (j < 16 * kSteps) *reinterpret_cast<uint64_t*>(halves + j) = four;
  }
  sums.squares = sum_of_lanes(sums.squares), sums.rounding_squares = sum_of_lanes(sums.rounding_squares);
  return sums;
}

/// Factor for a row's rough scores, twice their maximum error, and their maximum magnitude.
struct RowScreen {
  float inverse, margin, bound;
};
__device__ __forceinline__ RowScreen screen_row(const RowSums& row, unsigned depth, const RvqScreen& screen) {
  // Enlarged a little, for the rounding errors of these sums.
  const float norm = sqrtf(row.squares) * 1.0001f / row.scale;
  const float rounding = sqrtf(row.rounding_squares) * 1.0001f / row.scale;
  // Errors of the rounded operands; of the matrix units, which add 16 products at a time and may lose the last of
  // 23 bits each time; of the exact score and of adding the bias.
  const float both = (norm + rounding) * (screen.norm + screen.rounding);
  const float off = rounding * screen.norm + (norm + rounding) * screen.rounding +
                    static_cast<float>(depth) * 0x1p-21f * both + 0x1p-22f * (both + screen.bias) + 1e-37f;
  return {1 / row.scale / screen.scale, 2.01f * off, both + screen.bias};
}

/// The dynamic shared memory: two tiles of entries, and the tiles' biases. The halves of the block's rows are in
/// the place of the tiles before these are loaded.
template <unsigned kSteps>
struct Tiles {
  static constexpr unsigned kDepth = 16 * kSteps, kStride = kDepth + kRvqSkew;
  static constexpr size_t kHalves = size_t{2} * kRvqTile * kStride;
  static constexpr size_t kBytes = kHalves * sizeof(uint16_t) + 2 * kRvqTile * sizeof(float);
  static_assert(kRvqRows <= 2 * kRvqTile);

  uint16_t* halves = dynamic_shared<uint16_t>();
  float* biases = reinterpret_cast<float*>(halves + kHalves);

  __device__ __forceinline__ uint16_t* row(unsigned r) const { return halves + r * kStride; }
};

/// Loads a warp's 16 rows as operands of the matrix units from their halves, which may be overwritten then. For
/// all threads of the block.
template <unsigned kSteps>
__device__ __forceinline__ void take_rows(const Tiles<kSteps>& tiles, uint32_t (&rows)[kSteps][4]) {
  const unsigned lane = threadIdx.x % kWarp, first_row = threadIdx.x / kWarp * kRvqWarpRows;
  __syncwarp();
#pragma unroll
  for (unsigned k = 0; k < kSteps; ++k)
    load_matrices(rows[k], tiles.row(first_row + lane / 8 % 2 * 8 + lane % 8) + k * 16 + lane / 16 * 8);
  __syncthreads();
}

/// Entries whose products a warp has at the same time: four sums that do not wait for one another.
constexpr unsigned kRvqColumns = 32;
using Products = float[kRvqColumns / 8][4];
using Biases = float[kRvqColumns / 8][2];

/// Calls body(products, column, biases, place) for all tiles of a stage's entries: products[n][i] is the rough product of
/// row lane / 4 + 8 (i / 2) of the warp with entry column + 8 n + i % 2, biases[n][i % 2] that entry's; place =
/// column / 8 in the tile, a constant for bodies that ask for unrolled ones. For all threads of the block.
template <unsigned kSteps, bool kUnrolled = false, class Body>
__device__ __forceinline__ void for_products(const RvqBooks& books, unsigned stage,
                                             const Tiles<kSteps>& tiles, const uint32_t (&rows)[kSteps][4],
                                             Body&& body) {
  constexpr unsigned kDepth = 16 * kSteps, kStride = kDepth + kRvqSkew, kTileHalves = kRvqTile * kStride;
  const size_t first_entry = size_t{stage} * books.tiles * kRvqTile;
  const unsigned lane = threadIdx.x % kWarp, matrix = lane / 8, row = lane % 8;
  const auto load = [&](unsigned tile) {
    constexpr unsigned kPieces = kDepth / 8, kThreads = kRvqWarps * kWarp;
    uint16_t* const to = tiles.halves + tile % 2 * kTileHalves;
    const uint16_t* const halves = books.halves + (first_entry + size_t{tile} * kRvqTile) * kDepth;
#pragma unroll
    for (unsigned begin = 0; begin < kRvqTile * kPieces; begin += kThreads) {
      const unsigned i = begin + threadIdx.x;
      if (kRvqTile * kPieces % kThreads == 0 || i < kRvqTile * kPieces)
        copy_async16(to + i / kPieces * kStride + i % kPieces * 8, halves + i * 8);
    }
    if (threadIdx.x < kRvqTile / 4)
      copy_async16(tiles.biases + tile % 2 * kRvqTile + threadIdx.x * 4,
                   books.bias + first_entry + size_t{tile} * kRvqTile + threadIdx.x * 4);
  };
  load(0);
  copy_async_commit();
  for (unsigned tile = 0; tile < books.tiles; ++tile) {
    if (tile + 1 < books.tiles) load(tile + 1);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    const uint16_t* const from = tiles.halves + tile % 2 * kTileHalves;
#pragma unroll(kUnrolled ? kRvqTile / kRvqColumns : 1)
    for (unsigned block = 0; block < kRvqTile; block += kRvqColumns) {
      Products products = {};
#pragma unroll
      for (unsigned k = 0; k < kSteps; ++k)
#pragma unroll
        for (unsigned n = 0; n < kRvqColumns / 8; n += 2) {
          uint32_t loaded[4];
          load_matrices(loaded,
                        from + (block + n * 8 + matrix / 2 * 8 + row) * kStride + k * 16 + matrix % 2 * 8);
          multiply_f16(products[n], rows[k], loaded[0], loaded[1]);
          multiply_f16(products[n + 1], rows[k], loaded[2], loaded[3]);
        }
      const float* const bias = tiles.biases + tile % 2 * kRvqTile + block + lane % 4 * 2;
      Biases biases;
#pragma unroll
      for (unsigned n = 0; n < kRvqColumns / 8; ++n)
        biases[n][0] = bias[n * 8], biases[n][1] = bias[n * 8 + 1];
      body(products, tile * kRvqTile + block + lane % 4 * 2, biases, block / 8);
    }
    __syncthreads();
  }
}

/// Candidates that a warp has found, to be scored exactly: pairs of a row of the warp and an entry.
struct NearList {
  static constexpr unsigned kRoom = 64;
  uint32_t* ids;
  uint8_t* rows;
  unsigned count = 0;  ///< the same in all lanes

  /// Adds the pairs of lanes that are near. For the whole warp. The list has room for a pair of each lane.
  __device__ __forceinline__ void add(bool near, unsigned row, uint32_t id) {
    const unsigned all = __ballot_sync(kAllLanes, near);
    const unsigned place = count + __popc(all & ((1u << threadIdx.x % kWarp) - 1));
    if (near) ids[place] = id, rows[place] = static_cast<uint8_t>(row);
    count += __popc(all);
  }
};

/// Lists the pairs of `products` for which near(n, i) holds; flush() empties a full list. For the whole warp.
template <class Near, class Flush>
__device__ __forceinline__ void list_near(NearList& list, unsigned column, Near&& near, Flush&& flush) {
  unsigned mask = 0;
#pragma unroll
  for (unsigned i = 0; i < kRvqColumns / 2; ++i) mask |= static_cast<unsigned>(near(i / 4, i % 4)) << i;
  const unsigned row = threadIdx.x % kWarp / 4;
#pragma unroll 1  // rarely run, and mostly once: its code should stay small
  for (; __ballot_sync(kAllLanes, mask != 0) != 0; mask &= mask - 1) {
    if (list.count + kWarp > NearList::kRoom) flush();
    const auto i = static_cast<unsigned>(__ffs(static_cast<int>(mask))) - 1;  // of lanes with a pair left
    list.add(mask != 0, row + i % 4 / 2 * 8, column + i / 4 * 8 + i % 2);
  }
}

}  // namespace rvq_detail

/// Blocks of threads that a multiprocessor's registers are to be enough for.
constexpr unsigned rvq_encode_blocks(unsigned steps) { return steps <= 8 ? 3 : 2; }
constexpr unsigned rvq_beam_blocks(unsigned steps) { return steps <= 8 ? 2 : 1; }

template <unsigned kSteps>
__global__ void __launch_bounds__(kRvqWarps* kWarp, rvq_encode_blocks(kSteps))
    rvq_encode(RvqBooks books, float* residuals, uint64_t count, uint32_t* ids) {
  using namespace rvq_detail;
  KVCODEC_SHARED_ARRAY(float, best_scores, kRvqRows);
  KVCODEC_SHARED_ARRAY(uint32_t, best_ids, kRvqRows);
  KVCODEC_SHARED_ARRAY(uint32_t, near_ids, kRvqWarps * NearList::kRoom);
  KVCODEC_SHARED_ARRAY(uint8_t, near_rows, kRvqWarps * NearList::kRoom);
  const Tiles<kSteps> tiles;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, first_row = warp * kRvqWarpRows;
  const uint64_t first = uint64_t{blockIdx.x} * kRvqRows + first_row;  // of this warp
  const auto own_rows = static_cast<unsigned>(first >= count                 ? 0
                                              : count - first < kRvqWarpRows ? count - first
                                                                             : kRvqWarpRows);
  float* const own_residuals = residuals + first * books.padded;
  const auto residual = [&](unsigned r) { return r < own_rows ? own_residuals + r * books.padded : nullptr; };
  const bool real[2] = {lane / 4 < own_rows, lane / 4 + 8 < own_rows};
  for (unsigned stage = 0; stage < books.stages; ++stage) {
    const float* const entries = books.entries + size_t{stage} * books.count * books.padded;
    const float* const bias = books.bias + size_t{stage} * books.tiles * kRvqTile;
    // The residuals of the stage before are this stage's rows. (Stalls for these loads, one row after the other,
    // and for those of exact scores were half of the kernel's time.)
    RowSums sums;
#pragma unroll 1
    for (unsigned r = 0; r < kRvqWarpRows; r += kRowsTogether) {
      RowValues<kSteps> rows[kRowsTogether];
#pragma unroll
      for (unsigned i = 0; i < kRowsTogether; ++i) rows[i].load(residual(r + i), books.padded);
      if (stage > 0) {
        const float* const before = entries - size_t{books.count} * books.padded;
        RowValues<kSteps> chosen[kRowsTogether];
#pragma unroll
        for (unsigned i = 0; i < kRowsTogether; ++i)
          chosen[i].load(before + size_t{best_ids[first_row + r + i]} * books.padded, books.padded);
#pragma unroll
        for (unsigned i = 0; i < kRowsTogether; ++i) {
          rows[i].subtract(chosen[i]);
          rows[i].store(residual(r + i), books.padded);
        }
      }
#pragma unroll
      for (unsigned i = 0; i < kRowsTogether; ++i) {
        const RowSums row = write_halves(rows[i], tiles.row(first_row + r + i));
        if (lane == r + i) sums = row;
      }
    }
    const RowScreen own = screen_row(sums, 16 * kSteps, books.screens[stage]);
    __syncwarp();  // all have read the ids of the stage before
    // A valid id, as no comparison replaces it if scores are NaN.
    if (lane < kRvqWarpRows) best_scores[first_row + lane] = -INFINITY, best_ids[first_row + lane] = 0;
    uint32_t rows[kSteps][4];
    take_rows(tiles, rows);
    const float inverse[2] = {__shfl_sync(kAllLanes, own.inverse, lane / 4),
                              __shfl_sync(kAllLanes, own.inverse, lane / 4 + 8)};

    float limit[2] = {-INFINITY, -INFINITY};  // at first the best rough scores
    for_products(
        books, stage, tiles, rows, [&](const Products& products, unsigned, const Biases& biases, unsigned) {
#pragma unroll
          for (unsigned n = 0; n < kRvqColumns / 8; ++n)
#pragma unroll
            for (unsigned i = 0; i < 4; ++i)
              limit[i / 2] = fmaxf(limit[i / 2], fmaf(products[n][i], inverse[i / 2], biases[n][i % 2]));
        });
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      limit[half] = largest_of_lanes<4>(limit[half]);  // the lanes of a row
      limit[half] -= __shfl_sync(kAllLanes, own.margin, lane / 4 + half * 8);
    }

    NearList list{near_ids + warp * NearList::kRoom, near_rows + warp * NearList::kRoom};
    const auto score_list = [&] {  // a pair in each half of the warp
      __syncwarp();
#pragma unroll 1
      for (unsigned i = 0; i < list.count; i += 2) {
        const unsigned at = i + lane / 16;
        const bool one = at < list.count;
        const unsigned r = list.rows[one ? at : i], id = list.ids[one ? at : i];
        const float exact =
            exact_score<kSteps>(residual(r), entries + size_t{id} * books.padded, books.padded, bias[id]);
#pragma unroll
        for (unsigned turn = 0; turn < kWarp; turn += 16) {  // both may be of one row
          if (lane == turn && one) {
            const float best = best_scores[first_row + r];
            if (exact > best || (exact == best && id < best_ids[first_row + r]))
              best_scores[first_row + r] = exact, best_ids[first_row + r] = id;
          }
          __syncwarp();
        }
      }
      list.count = 0;
    };
    for_products(books, stage, tiles, rows,
                 [&](const Products& products, unsigned column, const Biases& biases, unsigned) {
                   list_near(
                       list, column,
                       [&](unsigned n, unsigned i) {
                         const float score = fmaf(products[n][i], inverse[i / 2], biases[n][i % 2]);
                         return real[i / 2] && !(score < limit[i / 2]) &&
                                column + n * 8 + i % 2 < books.count;
                       },
                       score_list);
                 });
    score_list();
    if (lane < own_rows) ids[(first + lane) * books.stages + stage] = best_ids[first_row + lane];
  }
}

// Beam search -------------------------------------------------------------------------------------
//
// ResidualEncoder of lib/rvq with more than one hypothesis. A block of threads takes its rows through all
// stages, with the hypotheses of a row side by side as if they were rows: each warp has 16 of them, whole
// rows' worth of narrow beams, or a part of a wide one. A stage is as that of the greedy search, except for the
// limit. The entries of each hypothesis fall in 64 classes. The highest rough score of a class, minus its
// maximum error, is a lower bound of the score of one pair of hypothesis and entry, so the B-th highest of
// these, over all classes of a row's hypotheses, is a lower bound of the B-th best score. Pairs that may reach
// it are scored exactly, and the B best are kept, ranked as lib ranks them.

/// Assignment of a block's places to hypotheses.
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
  /// Number in the block of a warp's row `own`.
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

/// A positive number for a finite score, in the order of scores; 0 for -infinity and NaN.
__device__ __forceinline__ uint32_t class_key(float score) {
  return score > -INFINITY ? unsigned_key(score) : 0;
}

/// A number that at least `wanted` of `count` values, given by their keys, reach, and few more; -infinity if
/// fewer than `wanted` are finite. For the whole warp.
__device__ __forceinline__ float limit_of(const uint32_t* keys, unsigned count, unsigned wanted) {
  const unsigned lane = threadIdx.x % kWarp;
  uint32_t low = ~0u, high = 0;  // first the lowest and highest key; then enough keys reach low, too few high
  unsigned real = 0;
  for (unsigned i = lane; i < count; i += kWarp) {
    const uint32_t key = keys[i];
    if (key == 0) continue;
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
    for (unsigned i = lane; i < count; i += kWarp) above += keys[i] >= middle;
    above = sum_of_lanes(above);
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

/// Adds a choice to a list of at most `wanted`. In a full list it replaces the choice that ranks last, if it ranks
/// before that. For the whole warp, which alone has the list.
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

template <unsigned kSteps>
__global__ void __launch_bounds__(kRvqWarps* kWarp, rvq_beam_blocks(kSteps))
    rvq_beam(RvqBooks books, RvqBeam beam) {
  using namespace rvq_detail;
  struct Place {
    uint64_t row;
    unsigned own;  // which of its warp's rows
    unsigned hypothesis;
    bool real;
  };
  KVCODEC_SHARED_ARRAY(Place, all_places, kRvqRows);
  KVCODEC_SHARED_ARRAY(float, offsets, kRvqRows);    // of hypotheses; -infinity where there is none
  KVCODEC_SHARED_ARRAY(float, limits, kRvqRows);     // [warp][its rows]
  KVCODEC_SHARED_ARRAY(uint32_t, counts, kRvqRows);  // [warp][its rows]
  KVCODEC_SHARED_ARRAY(Choice, lists, kRvqWarps * kRvqMaxHypotheses);  // [warp][its rows][beam]
  KVCODEC_SHARED_ARRAY(Choice, winners, kRvqRows);
  KVCODEC_SHARED_ARRAY(uint32_t, near_ids, kRvqWarps * NearList::kRoom);
  KVCODEC_SHARED_ARRAY(uint8_t, near_rows, kRvqWarps * NearList::kRoom);
  const Tiles<kSteps> tiles;
  auto* const classes = reinterpret_cast<uint32_t*>(tiles.biases + 2 * kRvqTile);  // [place][class], keys
  const BeamPlaces places(beam.beam);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, first_place = warp * kRvqWarpRows;
  const Place* const own_places = all_places + first_place;

  if (lane < kRvqWarpRows) {
    Place at{};
    at.own = places.warps == 1 ? lane / beam.beam : 0;
    const unsigned row = places.row(warp, at.own);
    at.hypothesis = first_place + lane - places.first(row);
    at.row = uint64_t{blockIdx.x} * places.rows + row;
    at.real =
        at.own < places.per_warp && row < places.rows && at.hypothesis < beam.beam && at.row < beam.count;
    all_places[first_place + lane] = at;
    offsets[first_place + lane] = at.real && at.hypothesis == 0 ? 0 : -INFINITY;
  }
  __syncwarp();
  for (unsigned stage = 0; stage < books.stages; ++stage) {
    const float* const entries = books.entries + size_t{stage} * books.count * books.padded;
    const float* const bias = books.bias + size_t{stage} * books.tiles * kRvqTile;
    const bool last_stage = stage + 1 == books.stages;
    const unsigned wanted = last_stage ? 1 : beam.beam;
    // Two buffers hold in turn the residuals of this stage's hypotheses and of the next one's. (Chosen without an
    // index: an argument that is indexed would be copied to memory.)
    const bool odd = stage % 2 != 0;
    const float* const old_residuals = odd ? beam.residuals[1] : beam.residuals[0];
    const auto residual = [&](uint64_t row, unsigned hypothesis) {
      return stage == 0 ? beam.rows + row * books.padded
                        : old_residuals + (row * beam.beam + hypothesis) * books.padded;
    };
    RowSums sums;
#pragma unroll 1
    for (unsigned r = 0; r < kRvqWarpRows; r += kRowsTogether) {
      RowValues<kSteps> rows[kRowsTogether];
#pragma unroll
      for (unsigned i = 0; i < kRowsTogether; ++i) {
        const Place& at = own_places[r + i];
        rows[i].load(offsets[first_place + r + i] > -INFINITY ? residual(at.row, at.hypothesis) : nullptr,
                     books.padded);
      }
#pragma unroll
      for (unsigned i = 0; i < kRowsTogether; ++i) {
        const RowSums row = write_halves(rows[i], tiles.row(first_place + r + i));
        if (lane == r + i) sums = row;
      }
    }
    const RowScreen own_screen = screen_row(sums, 16 * kSteps, books.screens[stage]);
    if (lane < kRvqWarpRows) counts[first_place + lane] = 0;
    uint32_t rows[kSteps][4];
    take_rows(tiles, rows);
    const unsigned lane_places[2] = {lane / 4, lane / 4 + 8};
    const float inverse[2] = {__shfl_sync(kAllLanes, own_screen.inverse, lane_places[0]),
                              __shfl_sync(kAllLanes, own_screen.inverse, lane_places[1])};

    float error[2], offset[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      offset[half] = offsets[first_place + lane_places[half]];
      // The maximum error of a rough score, and the rounding errors of adding offset and error to it.
      error[half] = 0.5f * __shfl_sync(kAllLanes, own_screen.margin, lane_places[half]) +
                    0x1p-21f * (__shfl_sync(kAllLanes, own_screen.bound, lane_places[half]) +
                                (offset[half] > -INFINITY ? fabsf(offset[half]) : 0));
    }

    constexpr unsigned kPlaces = kRvqTile / 8;
    float highest[kPlaces][4];
#pragma unroll
    for (unsigned place = 0; place < kPlaces; ++place)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) highest[place][i] = -INFINITY;
    for_products<kSteps, true>(books, stage, tiles, rows,
                               [&](const Products& products, unsigned, const Biases& biases, unsigned place) {
#pragma unroll
                                 for (unsigned n = 0; n < kRvqColumns / 8; ++n)
#pragma unroll
                                   for (unsigned i = 0; i < 4; ++i)
                                     highest[place + n][i] =
                                         fmaxf(highest[place + n][i],
                                               fmaf(products[n][i], inverse[i / 2], biases[n][i % 2]));
                               });
#pragma unroll
    for (unsigned place = 0; place < kPlaces; ++place)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        classes[(first_place + lane_places[i / 2]) * kRvqTile + place * 8 + lane % 4 * 2 + i % 2] =
            class_key((highest[place][i] - error[i / 2]) + offset[i / 2]);
    __syncthreads();
    for (unsigned own = 0; own < places.per_warp; ++own) {
      const unsigned row = places.row(warp, own);
      if (row >= places.rows) continue;  // a whole warp
      const float limit = limit_of(classes + places.first(row) * kRvqTile, beam.beam * kRvqTile, wanted);
      if (lane == 0) limits[first_place + own] = limit;
    }
    __syncwarp();
    float limit[2];
    bool takes_part[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const Place& at = own_places[lane_places[half]];
      limit[half] = at.real ? limits[first_place + at.own] : 0;
      takes_part[half] = at.real && offset[half] > -INFINITY;
    }

    NearList near{near_ids + warp * NearList::kRoom, near_rows + warp * NearList::kRoom};
    const auto score_list = [&] {  // a pair in each half of the warp
      __syncwarp();
#pragma unroll 1
      for (unsigned i = 0; i < near.count; i += 2) {
        const unsigned pair = i + lane / 16 < near.count ? i + lane / 16 : i;
        const unsigned r = near.rows[pair], id = near.ids[pair];
        const Place& at = own_places[r];
        const float exact = exact_score<kSteps>(residual(at.row, at.hypothesis),
                                                entries + size_t{id} * books.padded, books.padded, bias[id]) +
                            offsets[first_place + r];
#pragma unroll 1
        for (unsigned turn = 0; turn < kWarp && i + turn / 16 < near.count; turn += 16) {
          const Place& from = own_places[__shfl_sync(kAllLanes, r, turn)];
          add_choice({__shfl_sync(kAllLanes, exact, turn), from.hypothesis, __shfl_sync(kAllLanes, id, turn)},
                     wanted, lists + warp * kRvqMaxHypotheses + from.own * beam.beam,
                     counts + first_place + from.own);
        }
      }
      near.count = 0;
    };
    for_products(
        books, stage, tiles, rows,
        [&](const Products& products, unsigned column, const Biases& biases, unsigned) {
          list_near(
              near, column,
              [&](unsigned n, unsigned i) {
                const float score =
                    (fmaf(products[n][i], inverse[i / 2], biases[n][i % 2]) + error[i / 2]) + offset[i / 2];
                return takes_part[i / 2] && !(score < limit[i / 2]) && column + n * 8 + i % 2 < books.count;
              },
              score_list);
        });
    score_list();
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
          const Choice* const list = lists + w * kRvqMaxHypotheses + own * beam.beam;
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

    float* const new_residuals = odd ? beam.residuals[0] : beam.residuals[1];
    const uint32_t* const old_paths = odd ? beam.paths[1] : beam.paths[0];
    uint32_t* const new_paths = odd ? beam.paths[0] : beam.paths[1];
    // A place in each half of the warp.
#pragma unroll 1
    for (unsigned i = 0; i < kRvqWarpRows; i += 2) {
      const unsigned r = i + lane / 16, own_lane = lane % 16;
      const Place& at = own_places[r];
      const bool moves = at.real && !last_stage;
      const Choice choice = winners[first_place + r];
      if (at.real && (moves || at.hypothesis == 0)) {
        const uint32_t* const from = old_paths + (at.row * beam.beam + choice.hypothesis) * books.stages;
        uint32_t* const to = last_stage ? beam.ids + at.row * books.stages
                                        : new_paths + (at.row * beam.beam + at.hypothesis) * books.stages;
        for (unsigned s = own_lane; s < stage; s += 16) to[s] = from[s];
        if (own_lane == 0) to[stage] = choice.id;
      }
      if (last_stage) continue;
      // As lib subtracts: element j's square goes to lane j mod 16, the lanes are added as a tree.
      const float* const row = (moves ? residual(at.row, choice.hypothesis) : entries) + own_lane;
      const float* const entry = (moves ? entries + size_t{choice.id} * books.padded : entries) + own_lane;
      float left[kSteps], energy = 0;
#pragma unroll
      for (unsigned step = 0; step < kSteps; ++step)
        left[step] = step * 16 < books.padded ? row[step * 16] - entry[step * 16] : 0;
      float* const to = new_residuals + (at.row * beam.beam + at.hypothesis) * books.padded + own_lane;
#pragma unroll
      for (unsigned step = 0; step < kSteps; ++step) {
        if (moves && step * 16 < books.padded) to[step * 16] = left[step];
        energy += left[step] * left[step];
      }
      energy = sum_of_lanes<16>(energy);
      if (moves && own_lane == 0)
        offsets[first_place + r] = choice.score > -INFINITY ? -energy / 2 : -INFINITY;
    }
    __syncwarp();  // other warps read these residuals and paths after barriers of the next stage only
  }
}

// Sums of outer products of training, in double ---------------------------------------------------

/// Rows of a block of threads: a warp for each, a lane per column.
constexpr unsigned kOuterRows = 8;

/// A thread per element, which goes over all entries: the order of its sum is that of the entries.
__global__ void __launch_bounds__(kOuterRows* kWarp) outer_sums(OuterSums all) {
  const unsigned i = blockIdx.y * kOuterRows + threadIdx.x / kWarp;
  const unsigned j = blockIdx.x * kWarp + threadIdx.x % kWarp;
  if (i >= all.n || j >= all.m) return;
  double sum = 0;
  for (unsigned e = 0; e < all.count; ++e)
    sum += all.rows[size_t{e} * all.n + i] * all.others[size_t{e} * all.m + j];
  all.out[size_t{i} * all.m + j] = sum;
}

// Launchers ---------------------------------------------------------------------------------------

Status run_rvq_decode(const RvqBooks& books, const RvqSums& sums, StreamHandle stream) {
  constexpr unsigned kThreads = 256;
  constexpr uint64_t kMaxBlocks = 1 << 16;  // beyond, threads take several quads
  const uint64_t wanted = (sums.rows * ((sums.width + 3) / 4) + kThreads - 1) / kThreads;
  return launch(rvq_decode, static_cast<unsigned>(wanted < kMaxBlocks ? wanted : kMaxBlocks), kThreads, 0,
                stream, books, sums);
}

Status run_rvq_encode(const RvqBooks& books, float* residuals, size_t rows, uint32_t* ids,
                      StreamHandle stream) {
  return for_size<16, 32, 64, 128, 256>(rvq_depth(books.padded), [&]<unsigned kDepth>() {
    return launch(rvq_encode<kDepth / 16>, divide_up(rows, kRvqRows), kRvqWarps * kWarp,
                  rvq_detail::Tiles<kDepth / 16>::kBytes, stream, books, residuals, uint64_t{rows}, ids);
  });
}

Status run_rvq_beam(const RvqBooks& books, const RvqBeam& beam, StreamHandle stream) {
  return for_size<16, 32, 64, 128, 256>(rvq_depth(books.padded), [&]<unsigned kDepth>() {
    constexpr size_t kClasses =
        size_t{kRvqRows} * kRvqTile * sizeof(uint32_t);  // behind the greedy search's tiles
    return launch(rvq_beam<kDepth / 16>, divide_up(beam.count, BeamPlaces(beam.beam).rows), kRvqWarps * kWarp,
                  rvq_detail::Tiles<kDepth / 16>::kBytes + kClasses, stream, books, beam);
  });
}

Status run_outer_sums(const OuterSums& sums, StreamHandle stream) {
  return launch(outer_sums, dim3(divide_up(sums.m, kWarp), divide_up(sums.n, kOuterRows)), kOuterRows * kWarp,
                0, stream, sums);
}

}  // namespace kvcodec::cuda
