// Sums of coefficient times atom (lib/sparse/reconstruct.hpp).
#include "cuda/reconstruct/reconstruct.cuh"
#include "cuda/runtime/kernel.cuh"
#include "lib/sparse/combine_kernels.hpp"

namespace kvcodec::cuda {

constexpr unsigned kSignalWarps = 8;

// Shared by both kernels ----------------------------------------------------------------------------

/// The places of a signal's pairs.
struct PairRange {
  uint64_t first, end;
};
__device__ __forceinline__ PairRange pairs_of(const DeviceCodes& codes, size_t signal) {
  const uint64_t index = codes.first + signal;
  if (codes.offsets) return {codes.offsets[index], codes.offsets[index + 1]};
  return {index * codes.each, (index + 1) * codes.each};
}

/// One pair. *bad learns of one that stands for nothing, which becomes 0 times atom 0.
struct Pair {
  uint32_t id;
  float coefficient;
};
__device__ __forceinline__ Pair pair_at(const DeviceCodes& codes, uint32_t atoms, uint64_t place,
                                        unsigned long long* bad) {
  const Pair pair{codes.ids[place], codes.coefficients[place]};
  if (pair.id < atoms && fabsf(pair.coefficient) < INFINITY) return pair;
  atomicMin(bad, static_cast<unsigned long long>(place));
  return {0, 0};
}

__device__ __forceinline__ float finished(const DeviceFinishing& finishing, float gain, unsigned channel,
                                          float value) {
  if (finishing.gains) value *= gain;
  if (finishing.scale) value *= finishing.scale[channel];
  if (finishing.mean) value += finishing.mean[channel];
  return value;
}

// Atoms of floats --------------------------------------------------------------------------------------

constexpr unsigned kChannels = 4;  ///< that a lane reads of an atom at once: 16 bytes

/// `lanes` lanes, 8, 16 or 32, have a signal and a slice of lanes * kChannels channels. They decode as many
/// pairs, one each, and hand them on; the atoms come from the second-level cache, eight of them under way at a
/// time. (A warp for each signal took an H100 420 us for 2^18 signals of 128 channels and 16 pairs with bf16
/// atoms, of which half its lanes read nothing, and 385 us with f32.)
__global__ void __launch_bounds__(kSignalWarps* kWarp, 3)
    reconstruct(DeviceAtoms atoms, DeviceCodes codes, DeviceFinishing finishing, DeviceSignals signals,
                unsigned lanes, unsigned long long* bad) {
  constexpr unsigned kAtOnce = 8;
  const size_t signal = size_t{blockIdx.x} * (kSignalWarps * kWarp / lanes) + threadIdx.x / lanes;
  const unsigned lane = threadIdx.x % lanes, lane_zero = threadIdx.x % kWarp - lane;
  const unsigned channel = (blockIdx.y * lanes + lane) * kChannels;
  const bool real = signal < signals.count, reads = channel < atoms.stride;
  const auto [first, end] = real ? pairs_of(codes, signal) : PairRange{0, 0};
  const auto pairs = static_cast<unsigned>(end - first);
  unsigned limit = pairs;  // of the warp's signals
  for (unsigned step = lanes; step < kWarp; step *= 2) {
    const unsigned other = __shfl_xor_sync(kAllLanes, limit, static_cast<int>(step));
    limit = limit > other ? limit : other;
  }
  const float* rows = atoms.rows + (reads ? channel : 0);

  float sums[kChannels] = {};
  for (unsigned from = 0; from < limit; from += lanes) {
    Pair own{0, 0};  // behind the last pair atom 0, which is read and not used
    if (from + lane < pairs) own = pair_at(codes, atoms.count, first + from + lane, bad);
    for (unsigned i = 0; i < lanes && from + i < limit; i += kAtOnce) {
      uint4 packed[kAtOnce];
#pragma unroll
      for (unsigned n = 0; n < kAtOnce; ++n) {
        const uint32_t id = __shfl_sync(kAllLanes, own.id, static_cast<int>(lane_zero + i + n));
        packed[n] = *reinterpret_cast<const uint4*>(rows + size_t{id} * atoms.stride);
      }
#pragma unroll
      for (unsigned n = 0; n < kAtOnce; ++n) {
        const float coefficient =
            __shfl_sync(kAllLanes, own.coefficient, static_cast<int>(lane_zero + i + n));
        if (from + i + n < pairs) {
          sums[0] = fmaf(coefficient, float_of(packed[n].x), sums[0]);
          sums[1] = fmaf(coefficient, float_of(packed[n].y), sums[1]);
          sums[2] = fmaf(coefficient, float_of(packed[n].z), sums[2]);
          sums[3] = fmaf(coefficient, float_of(packed[n].w), sums[3]);
        }
      }
    }
  }
  if (!real || channel >= atoms.width) return;
  const float gain = finishing.gains ? finishing.gains[signal] : 1;
  float values[kChannels];
#pragma unroll
  for (unsigned c = 0; c < kChannels; ++c)
    values[c] = channel + c < atoms.width ? finished(finishing, gain, channel + c, sums[c]) : 0;
  float* out = signals.out + signal * signals.stride + channel;
  if (channel + kChannels <= atoms.width && signals.stride % kChannels == 0) {
    store_vector(out, values);
  } else {
#pragma unroll
    for (unsigned c = 0; c < kChannels; ++c)
      if (channel + c < atoms.width) out[c] = values[c];
  }
}

// Atoms of 8 bits -----------------------------------------------------------------------------------------

constexpr unsigned kBankGroups =
    8;  ///< of 16 bytes: lines of so many neighbouring atoms lie in different ones

/// Place of a signal's k-th pair: the four pairs of a quad are side by side.
__device__ __forceinline__ size_t level_place(const LevelCodes& prepared, size_t signal, unsigned k) {
  return ((signal / kWarp * prepared.quads + k / 4) * kWarp + signal % kWarp) * 4 + k % 4;
}

/// Writes a signal's pairs in an order in which the 8 signals that read shared memory together find their
/// atoms in different banks, as far as they can: the turn of a pair of atom i is congruent to i - signal,
/// modulo 8, where turns are left. (With pairs as they came a load took 10.7 accesses instead of 4, and that
/// 455 us for 2^17 signals of 64 pairs and 512 channels on an H100.) pairs and ordered: of the warp, in
/// shared memory; pairs are used up.
__device__ __forceinline__ void write_by_banks(const LevelCodes& prepared, size_t signal, unsigned count,
                                               uint32_t* pairs, uint32_t* ordered, uint32_t* taken) {
  const unsigned lane = threadIdx.x % kWarp, below = (1u << lane) - 1, turns = (count + 3) / 4 * 4;
  const auto own = static_cast<unsigned>(signal);
  if (lane < kBankGroups) taken[lane] = 0;
  __syncwarp();
  unsigned late = 0;  // pairs whose own turns are used up: they wait at the beginning of `pairs`
  for (unsigned from = 0; from < count; from += kWarp) {
    const bool real = from + lane < count;
    const uint32_t pair = real ? pairs[from + lane] : 0;
    const unsigned group = (pair >> 16) % kBankGroups;
    unsigned alike = __ballot_sync(kAllLanes, real);
#pragma unroll
    for (unsigned bit = 1; bit < kBankGroups; bit *= 2) {
      const unsigned ballot = __ballot_sync(kAllLanes, (group & bit) != 0);
      alike &= group & bit ? ballot : ~ballot;
    }
    const auto before = static_cast<unsigned>(__popc(alike & below));
    const unsigned turn = (taken[group] + before) * kBankGroups + (group - own) % kBankGroups;
    const bool waits = real && turn >= turns;
    const unsigned waiting = __ballot_sync(kAllLanes, waits);
    __syncwarp();  // all have read
    if (real && before == 0) taken[group] += static_cast<unsigned>(__popc(alike));
    if (real && !waits) ordered[turn] = pair;
    if (waits) pairs[late + static_cast<unsigned>(__popc(waiting & below))] = pair;
    late += static_cast<unsigned>(__popc(waiting));
    __syncwarp();
  }
  unsigned placed = 0;
  for (unsigned from = 0; from < turns; from += kWarp) {
    const unsigned turn = from + lane;
    const bool free = turn < turns && turn / kBankGroups >= taken[(turn + own) % kBankGroups];
    const unsigned ballot = __ballot_sync(kAllLanes, free);
    const unsigned next = placed + static_cast<unsigned>(__popc(ballot & below));
    uint32_t pair = 0;  // behind the last pair 0 times atom 0
    if (turn < turns && !free)
      pair = ordered[turn];
    else if (next < late)
      pair = pairs[next];
    if (turn < turns) prepared.pairs[level_place(prepared, signal, turn)] = pair;
    placed += static_cast<unsigned>(__popc(ballot));
  }
}

/// A warp per signal: weights as lib's integers, in the order that combine_levels reads them.
template <bool kWide>
__global__ void __launch_bounds__(kSignalWarps* kWarp, 4)
    prepare_levels(DeviceLevels atoms, DeviceCodes codes, size_t count, LevelCodes prepared,
                   unsigned long long* bad) {
  using combine_kernels::kLargestWeight;
  using combine_kernels::kLeastWeight;
  KVCODEC_SHARED_ARRAY(uint32_t, all_ids, kSignalWarps * kMaxLevelPairs);
  KVCODEC_SHARED_ARRAY(uint32_t, all_products, kSignalWarps * kMaxLevelPairs);
  KVCODEC_SHARED_ARRAY(uint32_t, all_taken, kSignalWarps * kBankGroups);
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const size_t signal = size_t{blockIdx.x} * kSignalWarps + warp;
  if (signal >= count) return;  // a whole warp
  uint32_t* ids = all_ids + warp * kMaxLevelPairs;
  uint32_t* products = all_products + warp * kMaxLevelPairs;
  const auto [first, end] = pairs_of(codes, signal);
  const auto pairs = static_cast<unsigned>(end - first);
  float largest = 0;
  for (unsigned k = lane; k < pairs; k += kWarp) {
    const Pair pair = pair_at(codes, atoms.count, first + k, bad);
    const float product = pair.coefficient * atoms.scales[pair.id];
    ids[k] = pair.id, products[k] = bits_of(product);
    largest = fmaxf(largest, fabsf(product));
  }
  largest = largest_of_lanes(largest);
  constexpr auto kMax = static_cast<float>(kLargestWeight);
  const bool any = largest >= kLeastWeight;
  const float factor = any ? kMax / largest : 0;
  const unsigned quads = (pairs + 3) / 4;
  const auto weight = [&](unsigned k) { return __float2int_rn(float_of(products[k]) * factor); };
  if constexpr (kWide) {
    for (unsigned k = lane; k < quads * 4; k += kWarp) {  // behind the last pair 0 times atom 0
      const size_t at = level_place(prepared, signal, k);
      prepared.ids[at] = k < pairs ? ids[k] : 0, prepared.weights[at] = k < pairs ? weight(k) : 0;
    }
  } else {
    // Each lane reads and writes what is its own.
    for (unsigned k = lane; k < pairs; k += kWarp)
      ids[k] = ids[k] << 16 | (static_cast<uint32_t>(weight(k)) & 0xffff);
    write_by_banks(prepared, signal, pairs, ids, products, all_taken + warp * kBankGroups);
  }
  if (lane == 0) {
    prepared.units[signal] = any ? largest / kMax : 0;
    prepared.used[signal] = quads;
  }
}

constexpr unsigned kLevelThreads = 768;  ///< of a block: as many as have registers enough

/// Two pairs' words of four channels, side by side: channels 0 and 1, and 2 and 3, the first pair's lower.
__device__ __forceinline__ void add_levels(int (&sums)[4], uint32_t first, uint32_t second,
                                           uint32_t weights) {
  const uint32_t low = __byte_perm(first, second, 0x5140), high = __byte_perm(first, second, 0x7362);
  sums[0] = __dp2a_lo(static_cast<int>(weights), static_cast<int>(low), sums[0]);
  sums[1] = __dp2a_hi(static_cast<int>(weights), static_cast<int>(low), sums[1]);
  sums[2] = __dp2a_lo(static_cast<int>(weights), static_cast<int>(high), sums[2]);
  sums[3] = __dp2a_hi(static_cast<int>(weights), static_cast<int>(high), sums[3]);
}

/// A block takes many signals through one slice of the dictionary, which with kResident it holds in shared
/// memory; each of its threads has a signal and all channels of the slice. Of four pairs a thread reads 16
/// bytes of each atom and does 32 products of two levels with two weights: per product of one level half a
/// product and a quarter of a byte shuffle.
template <bool kResident, bool kWide>
__global__ void __launch_bounds__(kLevelThreads, 1)
    combine_levels(DeviceLevels atoms, LevelCodes prepared, DeviceFinishing finishing,
                   DeviceSignals signals) {
  const unsigned first = blockIdx.y * kLevelChannels;
  const int8_t* slice = atoms.slices + size_t{blockIdx.y} * atoms.count * kLevelChannels;
  if constexpr (kResident) {
    auto* shared = dynamic_shared<uint4>();
    for (unsigned i = threadIdx.x; i < atoms.count; i += kLevelThreads)
      shared[i] = reinterpret_cast<const uint4*>(slice)[i];
    __syncthreads();
    slice = reinterpret_cast<const int8_t*>(shared);
  }
  const auto* lines = reinterpret_cast<const uint4*>(slice);
  const unsigned lane = threadIdx.x % kWarp;
  const size_t tiles = (signals.count + kWarp - 1) / kWarp;
  for (size_t tile = size_t{blockIdx.x} * (kLevelThreads / kWarp) + threadIdx.x / kWarp; tile < tiles;
       tile += size_t{gridDim.x} * (kLevelThreads / kWarp)) {
    const size_t signal = tile * kWarp + lane;
    const bool real = signal < signals.count;
    const unsigned quads = real ? prepared.used[signal] : 0;
    int sums[4][4] = {};  // [four channels][channel]
#pragma unroll 2
    for (unsigned quad = 0; quad < quads; ++quad) {
      const size_t at = (tile * prepared.quads + quad) * kWarp + lane;
      uint32_t ids[4], weights[2];
      if constexpr (kWide) {
        const uint4 four = reinterpret_cast<const uint4*>(prepared.ids)[at];
        const uint4 w = reinterpret_cast<const uint4*>(prepared.weights)[at];
        ids[0] = four.x, ids[1] = four.y, ids[2] = four.z, ids[3] = four.w;
        weights[0] = __byte_perm(w.x, w.y, 0x5410), weights[1] = __byte_perm(w.z, w.w, 0x5410);
      } else {
        const uint4 four = reinterpret_cast<const uint4*>(prepared.pairs)[at];
        ids[0] = four.x >> 16, ids[1] = four.y >> 16, ids[2] = four.z >> 16, ids[3] = four.w >> 16;
        weights[0] = __byte_perm(four.x, four.y, 0x5410), weights[1] = __byte_perm(four.z, four.w, 0x5410);
      }
#pragma unroll
      for (unsigned two = 0; two < 2; ++two) {
        const uint4 a = lines[ids[2 * two]], b = lines[ids[2 * two + 1]];
        add_levels(sums[0], a.x, b.x, weights[two]);
        add_levels(sums[1], a.y, b.y, weights[two]);
        add_levels(sums[2], a.z, b.z, weights[two]);
        add_levels(sums[3], a.w, b.w, weights[two]);
      }
    }
    if (!real) continue;
    const float unit = prepared.units[signal], gain = finishing.gains ? finishing.gains[signal] : 1;
    float* out = signals.out + signal * signals.stride + first;
    constexpr unsigned kPerStore = 4;  // 16 bytes
    const bool whole = first + kLevelChannels <= atoms.width && signals.stride % kPerStore == 0;
#pragma unroll
    for (unsigned c = 0; c < kLevelChannels; c += kPerStore) {
      float values[kPerStore];
#pragma unroll
      for (unsigned i = 0; i < kPerStore; ++i) {
        const unsigned channel = first + c + i < atoms.width ? first + c + i : first;
        const float sum = static_cast<float>(sums[(c + i) / 4][(c + i) % 4]) * unit;
        values[i] = finished(finishing, gain, channel, sum);
      }
      if (whole) {
        store_vector(out + c, values);
      } else {
#pragma unroll
        for (unsigned i = 0; i < kPerStore; ++i)
          if (first + c + i < atoms.width) out[c + i] = values[i];
      }
    }
  }
}

// Launchers ---------------------------------------------------------------------------------------

Status run_reconstruct(const DeviceAtoms& atoms, const DeviceCodes& codes, const DeviceFinishing& finishing,
                       const DeviceSignals& signals, unsigned long long* bad, StreamHandle stream) {
  // As many lanes as a signal has work for.
  const unsigned wanted = divide_up(atoms.width, kChannels);
  const unsigned lanes = wanted <= 8 ? 8 : wanted <= 16 ? 16 : kWarp;
  const dim3 grid(divide_up(signals.count, kSignalWarps * kWarp / lanes), divide_up(wanted, lanes));
  return launch(reconstruct, grid, kSignalWarps * kWarp, 0, stream, atoms, codes, finishing, signals, lanes,
                bad);
}

Status run_prepare_levels(const DeviceLevels& atoms, const DeviceCodes& codes, size_t count,
                          const LevelCodes& prepared, unsigned long long* bad, StreamHandle stream) {
  return launch(prepared.pairs ? prepare_levels<false> : prepare_levels<true>, divide_up(count, kSignalWarps),
                kSignalWarps * kWarp, 0, stream, atoms, codes, count, prepared, bad);
}

Status run_combine_levels(const DeviceLevels& atoms, const LevelCodes& prepared,
                          const DeviceFinishing& finishing, const DeviceSignals& signals,
                          const Limits& device, StreamHandle stream) {
  if (signals.count == 0) return 0;
  const size_t of_slice = size_t{atoms.count} * kLevelChannels;
  const bool resident = prepared.pairs && of_slice <= device.shared_bytes;
  const auto kernel = resident         ? combine_levels<true, false>
                      : prepared.pairs ? combine_levels<false, false>
                                       : combine_levels<false, true>;
  // A slice has as many blocks as give each multiprocessor one, and no more than there are signals for.
  const unsigned slices = divide_up(atoms.width, kLevelChannels),
                 limit = divide_up(signals.count, kLevelThreads);
  unsigned blocks = static_cast<unsigned>(device.multiprocessors) / slices;
  if (blocks > limit) blocks = limit;
  if (blocks == 0) blocks = 1;
  return launch(kernel, dim3(blocks, slices), kLevelThreads, resident ? of_slice : 0, stream, atoms, prepared,
                finishing, signals);
}

}  // namespace kvcodec::cuda
