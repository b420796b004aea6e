// Nearest entries by rough products on the matrix units and exact ones where they are near
// (lib/linalg/nearest.hpp).
#include "cuda/kmeans/kmeans.cuh"
#include "cuda/runtime/kernel.cuh"

namespace kvcodec::cuda {

constexpr unsigned kRowWarps = 8;  ///< of kernels that give a row to a warp

/// The largest value of a rough row is within [2^kRoughTop, 2^(kRoughTop + 1)): far from f16's overflow,
/// while what is 2^-24 of it is still there; products of two such and their sums are far from that of f32.
constexpr int kRoughTop = 10;

/// Bounds computed in floats are made larger by this: more than their own roundings, for up to 2^15
/// dimensions.
constexpr float kSlack = 1.01f;

constexpr float kLowest = -0x1.fffffep127f;

constexpr unsigned kPlaceMask = kPeakTile - 1;  ///< the last bits of a peak's best score: its entry's place

/// A warp per row.
__global__ void __launch_bounds__(kRowWarps* kWarp) make_rough(RoughRows rows) {
  const unsigned row = blockIdx.x * kRowWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (row >= rows.count) return;  // a whole warp
  const float* exact = rows.exact + size_t{row} * rows.d;
  float peak = 0;
  for (unsigned j = lane; j < rows.d; j += kWarp) peak = fmaxf(peak, fabsf(exact[j]));
  peak = largest_of_lanes(peak);
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
  norm = sum_of_lanes(norm), error = sum_of_lanes(error);
  if (lane == 0) {
    rows.factors[row] = factor;
    rows.norms[row] = sqrtf(norm) * kSlack * factor;
    rows.errors[row] = sqrtf(error) * kSlack * factor;
  }
}

__global__ void __launch_bounds__(256) find_largest(EntrySearch search) {
  const RoughRows& rows = search.entries;
  float norm = 0, error = 0, shift = 0;
  for (unsigned i = blockIdx.x * 256 + threadIdx.x; i < rows.count; i += gridDim.x * 256) {
    norm = fmaxf(norm, rows.norms[i]), error = fmaxf(error, rows.errors[i]);
    if (search.bias) shift = fmaxf(shift, fabsf(search.bias[i]));
  }
  norm = largest_of_lanes(norm), error = largest_of_lanes(error), shift = largest_of_lanes(shift);
  if (threadIdx.x % kWarp == 0) {  // floats that are not negative are in the order of their bits
    auto* bits = reinterpret_cast<unsigned*>(search.largest);
    atomicMax(&bits[0], bits_of(norm));
    atomicMax(&bits[1], bits_of(error));
    atomicMax(&bits[2], bits_of(shift));
  }
}

// Rough products -----------------------------------------------------------------------------------

constexpr unsigned kPeakThreads = 256;  ///< 8 warps, two by four: each 64 rows by 32 entries
constexpr unsigned kPeakStages = 2;
/// Elements of a row of a tile in shared memory: 16 bytes more than kRoughStep, so that the 8 rows of a
/// matrix load lie in different banks.
constexpr unsigned kPeakRow = kRoughStep + 8;
constexpr size_t kPeakStageElements = size_t{kPeakTile} * kPeakRow;  ///< of rows, or of entries
/// Rows up to which a block keeps its own in shared memory: two blocks fit a multiprocessor.
constexpr unsigned kPeakResident = 256;
/// Blocks that a device is to get: some for each multiprocessor, one after the other. With more of them, or
/// less than kPeakTiles tiles for each, rows would be loaded more often.
constexpr unsigned kPeakBlocks = 2048, kPeakTiles = 4;

/// Dynamic shared memory: the rows, all of them or a stage's part; stages of entries, with their factors and
/// biases; of each row its factor and a peak of each of four warps.
constexpr size_t peak_shared_bytes(bool resident, size_t padded) {
  const size_t rows = resident ? kPeakTile * (padded + 8) : kPeakStages * kPeakStageElements;
  return (rows + kPeakStages * kPeakStageElements) * sizeof(uint16_t) +
         (kPeakStages * 2 + 1) * kPeakTile * sizeof(float) + 4 * kPeakTile * sizeof(Peak);
}

/// The two highest of two pairs.
__device__ __forceinline__ Peak join(const Peak& a, const Peak& b) {
  return {fmaxf(a.best, b.best), fmaxf(fminf(a.best, b.best), fmaxf(a.second, b.second))};
}

/// Copies kRoughStep elements from column k on of kPeakTile rows, `length` apart in shared memory; rows that
/// are not there become zeros.
__device__ __forceinline__ void load_tile(uint16_t* shared, unsigned length, const RoughRows& rows,
                                          unsigned first, unsigned k) {
  constexpr unsigned kChunks = kRoughStep / 8, kRows = kPeakThreads / kChunks;  // of 16 bytes; at a time
  const unsigned own_row = threadIdx.x / kChunks, column = threadIdx.x % kChunks * 8;
  const uint16_t* from = rows.rough + (size_t{first} + own_row) * rows.padded + k + column;
#pragma unroll
  for (unsigned i = 0; i < kPeakTile; i += kRows) {
    const bool real = first + own_row + i < rows.count;
    copy_async16(shared + own_row * length + column + i * length, real ? from : rows.rough, real ? 16 : 0);
    from += size_t{kRows} * rows.padded;
  }
}

/// Copies values [first, first + kPeakTile), as far as there are so many, by a warp.
__device__ __forceinline__ void load_values(float* shared, const float* values, unsigned first,
                                            unsigned count) {
  const unsigned i = threadIdx.x % kWarp * 4, left = first + i < count ? count - first - i : 0;
  copy_async16(shared + i, values + (left > 0 ? first + i : 0), left < 4 ? left * 4 : 16);
}

/// A block has 128 rows and goes through a range of tiles of entries. With kResident the rows stay in shared
/// memory and entries alone are streamed, which halves what comes from the second-level cache (17 GB for
/// 65536 x 65536 x 128, as long as the products themselves).
///
/// Finding the peaks of a tile takes as many instructions as its products, or more: of 2435 of a warp and tile
/// 2000 were for peaks, when an id went along with each score and branches joined peaks. So the id takes the
/// place of the last bits of the score, and one maximum does both. score_mask is ~kPlaceMask; a constant and
/// another one would be two instructions.
template <bool kResident>
__global__ void __launch_bounds__(kPeakThreads, 2) product_peaks(EntrySearch search, uint32_t score_mask) {
  const RoughRows &rows = search.rows, &entries = search.entries;
  const float* const bias = search.bias;
  auto* of_rows = dynamic_shared<uint16_t>();
  const unsigned row_length = kResident ? rows.padded + 8 : kPeakRow;
  uint16_t* of_entries = of_rows + (kResident ? kPeakTile * row_length : kPeakStages * kPeakStageElements);
  auto* factors = reinterpret_cast<float*>(of_entries + kPeakStages * kPeakStageElements);  // [stage]
  float* biases = factors + kPeakStages * kPeakTile;                                        // [stage]
  float* row_factors = biases + kPeakStages * kPeakTile;
  auto* own_peaks = reinterpret_cast<Peak*>(row_factors + kPeakTile);  // [row][warp % 4]
  const unsigned first_row = blockIdx.y * kPeakTile;
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const unsigned warp_row = warp / 4 * 64, warp_entry = warp % 4 * 32;
  const unsigned tiles = (entries.count + kPeakTile - 1) / kPeakTile, steps = rows.padded / kRoughStep;
  const auto first_tile = static_cast<unsigned>(uint64_t{tiles} * blockIdx.x / gridDim.x);
  const auto end_tile = static_cast<unsigned>(uint64_t{tiles} * (blockIdx.x + 1) / gridDim.x);

  // Steps go on from one tile to the next, so that its first is under way while the last tile is summed up.
  unsigned to_load = first_tile, load_step = 0, load_stage = 0;
  const auto load = [&] {
    if (to_load < end_tile) {
      if constexpr (!kResident)
        load_tile(of_rows + load_stage * kPeakStageElements, row_length, rows, first_row,
                  load_step * kRoughStep);
      load_tile(of_entries + load_stage * kPeakStageElements, kPeakRow, entries, to_load * kPeakTile,
                load_step * kRoughStep);
      if (++load_step == steps) {  // the stage behind which a tile is summed up
        if (warp == 0)
          load_values(factors + load_stage * kPeakTile, entries.factors, to_load * kPeakTile, entries.count);
        if (warp == 1 && bias)
          load_values(biases + load_stage * kPeakTile, bias, to_load * kPeakTile, entries.count);
        load_step = 0, ++to_load;
      }
      load_stage = (load_stage + 1) % kPeakStages;
    }
    copy_async_commit();  // an empty group too, so that their number tells which step has arrived
  };
  if (threadIdx.x < kPeakTile)
    row_factors[threadIdx.x] =
        first_row + threadIdx.x < rows.count ? rows.factors[first_row + threadIdx.x] : 0;
  if constexpr (kResident)
    for (unsigned k = 0; k < rows.padded; k += kRoughStep)
      load_tile(of_rows + k, row_length, rows, first_row, k);
  for (unsigned step = 0; step < kPeakStages - 1; ++step) load();

  unsigned stage = 0;
  for (unsigned tile = first_tile; tile < end_tile; ++tile) {
    float sums[4][4][4] = {};  // [16 rows][8 entries]
    for (unsigned step = 0; step < steps; ++step) {
      copy_async_wait<kPeakStages - 2>();
      __syncthreads();  // the step is there for all, and the stage of the step before is free
      load();
      const uint16_t* a_tile = of_rows + (kResident ? step * kRoughStep : stage * kPeakStageElements);
      const uint16_t* b_tile = of_entries + stage * kPeakStageElements;
      stage = (stage + 1) % kPeakStages;
#pragma unroll
      for (unsigned k = 0; k < kRoughStep; k += 16) {
        uint32_t a[4][4], b[2][4];
#pragma unroll
        for (unsigned m = 0; m < 4; ++m)
          load_matrices(a[m], a_tile + (warp_row + m * 16 + lane % 16) * row_length + k + lane / 16 * 8);
#pragma unroll
        for (unsigned n = 0; n < 2; ++n)
          load_matrices(b[n], b_tile + (warp_entry + n * 16 + lane / 16 * 8 + lane % 8) * kPeakRow + k +
                                  lane / 8 % 2 * 8);
#pragma unroll
        for (unsigned m = 0; m < 4; ++m)
#pragma unroll
          for (unsigned n = 0; n < 4; ++n)
            multiply_f16(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }

    const unsigned lane_entry = warp_entry + lane % 4 * 2;  // n * 8 + c are bits that it has not
    const unsigned last_stage = (stage + kPeakStages - 1) % kPeakStages;
    const float* tile_factors = factors + last_stage * kPeakTile;
    const float* tile_biases = biases + last_stage * kPeakTile;
    float entry_factor[4][2], entry_bias[4][2];
#pragma unroll
    for (unsigned n = 0; n < 4; ++n)
#pragma unroll
      for (unsigned c = 0; c < 2; ++c) {
        const unsigned place = lane_entry + n * 8 + c;
        entry_factor[n][c] = tile_factors[place];
        // Places behind the last entry score below all entries.
        entry_bias[n][c] = tile * kPeakTile + place >= entries.count ? kLowest
                           : bias                                    ? tile_biases[place]
                                                                     : 0;
      }
#pragma unroll
    for (unsigned m = 0; m < 4; ++m)
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned row = warp_row + m * 16 + half * 8 + lane / 4;
        const float factor = row_factors[row];
        Peak peak{-INFINITY, -INFINITY};
#pragma unroll
        for (unsigned n = 0; n < 4; ++n)
#pragma unroll
          for (unsigned c = 0; c < 2; ++c) {
            const float score = fmaf(sums[m][n][half * 2 + c] * factor, entry_factor[n][c], entry_bias[n][c]);
            const float key = float_of((bits_of(score) & score_mask) | (n * 8 + c));
            peak.second = fmaxf(peak.second, fminf(peak.best, key));
            peak.best = fmaxf(peak.best, key);
          }
        peak.best = float_of(bits_of(peak.best) | lane_entry);
#pragma unroll
        for (unsigned step = 1; step < 4; step *= 2)
          peak = join(peak, {__shfl_xor_sync(kAllLanes, peak.best, step),
                             __shfl_xor_sync(kAllLanes, peak.second, step)});
        if (lane % 4 == 0) own_peaks[row * 4 + warp % 4] = peak;
      }
    __syncthreads();
    if (threadIdx.x < kPeakTile && first_row + threadIdx.x < rows.count) {
      const Peak* four = own_peaks + threadIdx.x * 4;
      search.peaks[size_t{first_row + threadIdx.x} * tiles + tile] =
          join(join(four[0], four[1]), join(four[2], four[3]));
    }
    // The next tile writes own_peaks behind the barriers of its steps.
  }
}

// Exact scores -------------------------------------------------------------------------------------

/// lib's score of a row with an entry, by 16 lanes: element i in lane i mod 16, products rounded before they
/// are added, the lanes as a tree. All 32 lanes call it, each half with an entry of its own.
__device__ __forceinline__ float exact_score(const float* row, const float* entry, unsigned d) {
  constexpr unsigned kTogether = 8;  // elements of a lane that are loaded at the same time
  unsigned j = threadIdx.x % 16;
  float sum = 0;
  for (; j + 16 * (kTogether - 1) < d; j += 16 * kTogether) {
    const float *from = row + j, *other = entry + j;
    float values[kTogether], others[kTogether];
#pragma unroll
    for (unsigned i = 0; i < kTogether; ++i) values[i] = from[i * 16], others[i] = other[i * 16];
#pragma unroll
    for (unsigned i = 0; i < kTogether; ++i) sum += values[i] * others[i];
  }
  for (; j < d; j += 16) sum += row[j] * entry[j];
  return sum_of_lanes<16>(sum);
}

/// A warp per row.
__global__ void __launch_bounds__(kRowWarps* kWarp) settle(EntrySearch search) {
  const RoughRows &rows = search.rows, &entries = search.entries;
  const float *const bias = search.bias, *const largest = search.largest;
  const unsigned row = blockIdx.x * kRowWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (row >= rows.count) return;  // a whole warp
  const unsigned tiles = (entries.count + kPeakTile - 1) / kPeakTile;
  const Peak* peaks = search.peaks + size_t{row} * tiles;
  float highest = -INFINITY;
  for (unsigned t = lane; t < tiles; t += kWarp) highest = fmaxf(highest, peaks[t].best);
  highest = largest_of_lanes(highest);

  const float norm = rows.norms[row], error = rows.errors[row];
  // Roundings of sums of d products, in either order and with the hardware's truncation, are below (d + 8)
  // 2^-22 of the product of the norms; adding the bias rounds once more on either side. With an entry's place
  // in its last 7 bits a score is off by 2^-16 of itself, and what may be the best is nearly as `highest` is.
  const float reach = (norm + error) * (largest[0] + largest[1]) + largest[2];
  const float bound =
      kSlack * (error * largest[0] + (norm + error) * largest[1] +
                (static_cast<float>(rows.d) + 8) * 0x1p-22f * reach + 0x1p-15f * fabsf(highest) + 1e-37f);
  // A row whose rough scores may be beyond floats has no bound: then all is scored. (Up to 2^100 the factor
  // of the entry may come behind that of the row.)
  const float least =
      norm < 0x1p100f && reach < INFINITY && bound < INFINITY ? highest - 2 * bound : -INFINITY;

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
        look(lane < 16 ? tile * kPeakTile + (bits_of(peaks[tile].best) & kPlaceMask) : entries.count);
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
    search.ids[row] = best_id;
    search.scores[row] = best;
  }
}

// Rows by cluster --------------------------------------------------------------------------------------
//
// A stable sort by counting (sort_by_cluster of lib/kmeans). The rows are cut in stretches, a warp each: it
// counts, for each cluster, its rows; prefix sums over the stretches, then over the clusters, say where each
// stretch's rows of each cluster begin; and the warp goes over its rows again and puts them there. Nothing
// depends on who comes first.

constexpr unsigned kSortWarps = 4;  ///< stretches of a block
constexpr unsigned kSortThreads = 256;
constexpr unsigned kSumThreads = 128;  ///< of a cluster whose rows are added

/// Calls body(row, label, same) for the rows of this warp's stretch, 32 at a time, by all lanes; same: the
/// lanes with this label. Lanes without a row have a label that is none.
template <class Body>
__device__ __forceinline__ void for_stretch(const SortByCluster& sort, unsigned tile, Body&& body) {
  constexpr uint32_t kNone = ~0u;
  const unsigned begin = tile * sort.tile_rows;
  const unsigned end = sort.rows - begin < sort.tile_rows ? sort.rows : begin + sort.tile_rows;
  for (unsigned first = begin; first < end; first += kWarp) {
    const unsigned row = first + threadIdx.x % kWarp;
    const uint32_t label = row < end ? sort.labels[row] : kNone;
    body(row, label, label != kNone, __match_any_sync(kAllLanes, label));
    __syncwarp();  // what one lane wrote the others read next
  }
}

/// counts[c * tiles + t] = rows of cluster c in stretch t; zeros before.
__global__ void __launch_bounds__(kSortWarps* kWarp) count_labels(SortByCluster sort) {
  const unsigned tile = blockIdx.x * kSortWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (tile >= sort.tiles) return;  // a whole warp
  for_stretch(sort, tile, [&](unsigned, uint32_t label, bool real, unsigned same) {
    if (real && static_cast<unsigned>(__ffs(static_cast<int>(same))) == lane + 1)
      sort.counts[size_t{label} * sort.tiles + tile] += static_cast<uint32_t>(__popc(same));
  });
}

/// A block per cluster: its counts become their prefix sums, and totals[c] their sum.
__global__ void __launch_bounds__(kSortThreads) scan_stretches(SortByCluster sort) {
  KVCODEC_SHARED_ARRAY(uint32_t, sums, kSortThreads / kWarp);
  uint32_t* const own = sort.counts + size_t{blockIdx.x} * sort.tiles;
  uint32_t before = 0;
  for (unsigned first = 0; first < sort.tiles; first += kSortThreads) {
    const unsigned tile = first + threadIdx.x;
    const uint32_t count = tile < sort.tiles ? own[tile] : 0;
    uint32_t total = 0;
    const uint32_t sum = prefix_sum(count, sums, total);
    if (tile < sort.tiles) own[tile] = before + sum;
    before += total;
  }
  if (threadIdx.x == 0) sort.totals[blockIdx.x] = before;
}

/// One block.
__global__ void __launch_bounds__(kSortThreads) scan_clusters(SortByCluster sort) {
  KVCODEC_SHARED_ARRAY(uint64_t, sums, kSortThreads / kWarp);
  uint64_t before = 0;
  for (unsigned first = 0; first < sort.clusters; first += kSortThreads) {
    const unsigned cluster = first + threadIdx.x;
    uint64_t total = 0;
    const uint64_t sum =
        prefix_sum(uint64_t{cluster < sort.clusters ? sort.totals[cluster] : 0}, sums, total);
    if (cluster < sort.clusters) sort.offsets[cluster] = before + sum;
    before += total;
  }
  if (threadIdx.x == 0) sort.offsets[sort.clusters] = before;
}

__global__ void __launch_bounds__(kSortWarps* kWarp) place_rows(SortByCluster sort) {
  const unsigned tile = blockIdx.x * kSortWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (tile >= sort.tiles) return;  // a whole warp
  for_stretch(sort, tile, [&](unsigned row, uint32_t label, bool real, unsigned same) {
    uint32_t* const place = sort.counts + size_t{real ? label : 0} * sort.tiles + tile;
    const uint32_t next = *place;
    __syncwarp();
    if (!real) return;
    const auto before = static_cast<uint32_t>(__popc(same & ((1u << lane) - 1)));
    sort.sorted[sort.offsets[label] + next + before] = row;
    if (before == 0) *place = next + static_cast<uint32_t>(__popc(same));
  });
}

/// A block per cluster, a thread per column: the cluster's rows added up in double in their order, as lib does, four loads
/// under way together. T: float for means, double for sums.
template <class T>
__global__ void __launch_bounds__(kSumThreads) cluster_totals(ClusteredRows all, T* out) {
  constexpr bool kMeans = sizeof(T) == sizeof(float);
  const uint64_t first = all.offsets[blockIdx.x], end = all.offsets[blockIdx.x + 1];
  if (kMeans && first >= end) return;
  for (unsigned j = threadIdx.x; j < all.d; j += kSumThreads) {
    const auto value = [&](uint64_t i) { return all.rows[size_t{all.sorted[i]} * all.d + j]; };
    double sum = 0;
    uint64_t i = first;
    for (; i + 4 <= end; i += 4) {
      float ahead[4];
#pragma unroll
      for (unsigned n = 0; n < 4; ++n) ahead[n] = value(i + n);
#pragma unroll
      for (unsigned n = 0; n < 4; ++n) sum += static_cast<double>(ahead[n]);
    }
    for (; i < end; ++i) sum += static_cast<double>(value(i));
    out[size_t{blockIdx.x} * all.d + j] =
        static_cast<T>(kMeans ? sum / static_cast<double>(end - first) : sum);
  }
}

// Launchers ---------------------------------------------------------------------------------------

Status run_make_rough(const RoughRows& rows, StreamHandle stream) {
  return launch(make_rough, divide_up(rows.count, kRowWarps), kRowWarps * kWarp, 0, stream, rows);
}

Status run_largest(const EntrySearch& search, StreamHandle stream) {
  const unsigned blocks = divide_up(search.entries.count, 256);
  return launch(find_largest, blocks < 64 ? blocks : 64, 256, 0, stream, search);
}

Status run_peaks(const EntrySearch& search, StreamHandle stream) {
  const unsigned tiles = divide_up(search.entries.count, kPeakTile),
                 row_tiles = divide_up(search.rows.count, kPeakTile);
  unsigned ranges = row_tiles < kPeakBlocks ? kPeakBlocks / (row_tiles ? row_tiles : 1) : 1;
  if (ranges > divide_up(tiles, kPeakTiles)) ranges = divide_up(tiles, kPeakTiles);
  const bool resident = search.rows.padded <= kPeakResident;
  return launch(resident ? product_peaks<true> : product_peaks<false>, dim3(ranges, row_tiles), kPeakThreads,
                peak_shared_bytes(resident, search.rows.padded), stream, search, ~kPlaceMask);
}

Status run_settle(const EntrySearch& search, StreamHandle stream) {
  return launch(settle, divide_up(search.rows.count, kRowWarps), kRowWarps * kWarp, 0, stream, search);
}

SortByCluster::SortByCluster(uint32_t all_rows, uint32_t all_clusters)
    : rows(all_rows), clusters(all_clusters) {
  // So few rows that many warps have work, so many that the counts, of which there are at most 2^24, are
  // worth it.
  constexpr uint32_t kRows = 1024, kCounts = 1 << 24;
  uint32_t wanted = divide_up(rows, kRows);
  const uint32_t highest = clusters < kCounts ? kCounts / clusters : 1;
  if (wanted > highest) wanted = highest;
  if (wanted == 0) wanted = 1;
  tile_rows = divide_up(rows, wanted);
  // Cut in stretches of so many, there may be fewer of them; none of them is empty.
  tiles = tile_rows == 0 ? 0 : divide_up(rows, tile_rows);
}

Status run_sort_by_cluster(const SortByCluster& sort, StreamHandle stream) {
  const unsigned blocks = divide_up(sort.tiles, kSortWarps);
  Status status = launch(count_labels, blocks, kSortWarps * kWarp, 0, stream, sort);
  if (status == 0) status = launch(scan_stretches, sort.clusters, kSortThreads, 0, stream, sort);
  if (status == 0) status = launch(scan_clusters, 1, kSortThreads, 0, stream, sort);
  if (status == 0) status = launch(place_rows, blocks, kSortWarps * kWarp, 0, stream, sort);
  return status;
}

Status run_cluster_means(const ClusteredRows& rows, float* means, StreamHandle stream) {
  return launch(cluster_totals<float>, rows.clusters, kSumThreads, 0, stream, rows, means);
}
Status run_cluster_sums(const ClusteredRows& rows, double* sums, StreamHandle stream) {
  return launch(cluster_totals<double>, rows.clusters, kSumThreads, 0, stream, rows, sums);
}

}  // namespace kvcodec::cuda
