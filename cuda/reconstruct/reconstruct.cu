// Sums of coefficient times atom (lib/sparse/reconstruct.hpp).
#include <type_traits>

#include "cuda/reconstruct/reconstruct.cuh"
#include "cuda/runtime/kernel.cuh"
#include "lib/entropy/packed_id.hpp"
#include "lib/sparse/combine_kernels.hpp"

namespace kvcodec::cuda {

constexpr unsigned kSignalWarps = 8;

// What both ways share ------------------------------------------------------------------------------

/// The two words of a packed stream that an element of `bits` bits is in.
struct PackedWords {
  uint32_t first = 0, second = 0;
  unsigned at = 0;  ///< the bit of the first at which it begins

  __device__ __forceinline__ static PackedWords load(const uint32_t* packed, unsigned bits, uint64_t place) {
    const uint64_t bit = place * bits;
    return {packed[bit / 32], packed[bit / 32 + 1], static_cast<unsigned>(bit % 32)};
  }
  __device__ __forceinline__ uint32_t element(unsigned bits) const {
    return packed_id(swap_bytes(first), swap_bytes(second), at, bits);
  }
};

/// The places of a signal's pairs.
struct PairRange {
  uint64_t first, end;
};
__device__ __forceinline__ PairRange pairs_of(const DeviceCodes& codes, size_t signal) {
  const uint64_t index = codes.first + signal;
  if (codes.offsets) return {codes.offsets[index], codes.offsets[index + 1]};
  return {index * codes.each, (index + 1) * codes.each};
}

/// One pair, from whatever form it has. *bad learns of what stands for nothing, which becomes 0 times atom 0.
struct Pair {
  uint32_t id;
  float coefficient;
};
__device__ __forceinline__ Pair pair_at(const DeviceCodes& codes, uint32_t atoms, size_t signal,
                                        uint64_t place, unsigned long long* bad) {
  // All loads are under way before anything waits for one of them.
  PackedWords id, word;
  uint32_t coefficient = 0, scale = 0;
  if (codes.ids)
    id.first = codes.ids[place];
  else if (codes.bits > 0)
    id = PackedWords::load(codes.packed, codes.bits, place);
  if (codes.coefficients) {
    coefficient = bits_of(codes.coefficients[place]);
  } else if (codes.half_coefficients) {
    coefficient = codes.half_coefficients[place];
  } else {
    word = PackedWords::load(codes.words, codes.word_bits, place);
    scale = codes.signal_scales[codes.first + signal];
  }
  Pair pair{id.first, 0};
  if (!codes.ids && codes.bits > 0) pair.id = id.element(codes.bits);
  if (codes.coefficients)
    pair.coefficient = float_of(coefficient);
  else if (codes.half_coefficients)
    pair.coefficient = f16_to_float(static_cast<uint16_t>(coefficient));
  else
    pair.coefficient = codes.numbers[word.element(codes.word_bits)] * codes.numbers[256 + scale];
  if (pair.id >= atoms || !(fabsf(pair.coefficient) < INFINITY)) {
    atomicMin(bad, static_cast<unsigned long long>(place));
    pair = {0, 0};
  }
  return pair;
}

__device__ __forceinline__ float finished(const DeviceFinishing& finishing, float gain, unsigned channel,
                                          float value) {
  if (finishing.gains) value *= gain;
  if (finishing.scale) value *= finishing.scale[channel];
  if (finishing.mean) value += finishing.mean[channel];
  return value;
}

template <SignalType kOut>
using SignalElement = std::conditional_t<kOut == SignalType::f32, float, uint16_t>;

template <SignalType kOut>
__device__ __forceinline__ SignalElement<kOut> narrowed(float value) {
  if constexpr (kOut == SignalType::f32)
    return value;
  else if constexpr (kOut == SignalType::bf16)
    return bf16_from_float(value);
  else
    return f16_from_float(value);
}

/// Writes values that are side by side 16 bytes at a time, or 8 where there are no more. `out` must be a
/// multiple of that.
template <SignalType kOut, unsigned kCount>
__device__ __forceinline__ void store_together(SignalElement<kOut>* out,
                                               const SignalElement<kOut> (&values)[kCount]) {
  constexpr unsigned kWords = kCount * sizeof(SignalElement<kOut>) / 4;
  uint32_t words[kWords];
#pragma unroll
  for (unsigned i = 0; i < kWords; ++i) {
    if constexpr (kOut == SignalType::f32)
      words[i] = bits_of(values[i]);
    else
      words[i] = uint32_t{values[2 * i]} | uint32_t{values[2 * i + 1]} << 16;
  }
  if constexpr (kWords == 2) {
    *reinterpret_cast<uint2*>(out) = make_uint2(words[0], words[1]);
  } else {
#pragma unroll
    for (unsigned i = 0; i < kWords; i += 4)
      reinterpret_cast<uint4*>(out)[i / 4] = make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
  }
}

// Atoms of floats --------------------------------------------------------------------------------------

/// Channels that a lane reads of an atom at once: 16 bytes.
template <AtomType kType>
constexpr unsigned kChannels = kType == AtomType::f32 ? 4 : 8;

template <AtomType kType>
__device__ __forceinline__ void widen_atom(const uint4& packed, float (&out)[kChannels<kType>]) {
  const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (unsigned i = 0; i < kChannels<kType>; ++i) {
    if constexpr (kType == AtomType::f32) {
      out[i] = float_of(words[i]);
    } else {
      const auto half = static_cast<uint16_t>(i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffff);
      out[i] = kType == AtomType::f16 ? f16_to_float(half) : bf16_to_float(half);
    }
  }
}

/// `lanes` lanes, 8, 16 or 32, have a signal and a slice of lanes * kChannels channels. They decode as many
/// pairs, one each, and hand them on; the atoms come from the second-level cache, eight of them under way at a
/// time. (A warp for each signal took an H100 420 us for 2^18 signals of 128 channels and 16 pairs with bf16
/// atoms, of which half its lanes read nothing, and 385 us with f32.)
template <AtomType kType, SignalType kOut>
__global__ void __launch_bounds__(kSignalWarps* kWarp, 3)
    reconstruct(DeviceAtoms atoms, DeviceCodes codes, DeviceFinishing finishing, DeviceSignals signals,
                unsigned lanes, unsigned long long* bad) {
  constexpr unsigned kOwn = kChannels<kType>, kBytes = kType == AtomType::f32 ? 4 : 2, kAtOnce = 8;
  const size_t signal = size_t{blockIdx.x} * (kSignalWarps * kWarp / lanes) + threadIdx.x / lanes;
  const unsigned lane = threadIdx.x % lanes, lane_zero = threadIdx.x % kWarp - lane;
  const unsigned channel = (blockIdx.y * lanes + lane) * kOwn;
  const bool real = signal < signals.count, reads = channel < atoms.stride;
  const auto [first, end] = real ? pairs_of(codes, signal) : PairRange{0, 0};
  const auto pairs = static_cast<unsigned>(end - first);
  unsigned most = pairs;  // of the warp's signals
  for (unsigned step = lanes; step < kWarp; step *= 2) {
    const unsigned other = __shfl_xor_sync(kAllLanes, most, static_cast<int>(step));
    most = most > other ? most : other;
  }
  const auto* rows = static_cast<const unsigned char*>(atoms.rows) + size_t{reads ? channel : 0} * kBytes;

  float sums[kOwn] = {};
  for (unsigned from = 0; from < most; from += lanes) {
    Pair own{0, 0};  // behind the last pair atom 0, which is read and not used
    if (from + lane < pairs) own = pair_at(codes, atoms.count, signal, first + from + lane, bad);
    for (unsigned i = 0; i < lanes && from + i < most; i += kAtOnce) {
      uint4 packed[kAtOnce];
#pragma unroll
      for (unsigned n = 0; n < kAtOnce; ++n) {
        const uint32_t id = __shfl_sync(kAllLanes, own.id, static_cast<int>(lane_zero + i + n));
        packed[n] = *reinterpret_cast<const uint4*>(rows + size_t{id} * (atoms.stride * kBytes));
      }
#pragma unroll
      for (unsigned n = 0; n < kAtOnce; ++n) {
        const float coefficient =
            __shfl_sync(kAllLanes, own.coefficient, static_cast<int>(lane_zero + i + n));
        float atom[kOwn];
        widen_atom<kType>(packed[n], atom);
        if (from + i + n < pairs) {
#pragma unroll
          for (unsigned c = 0; c < kOwn; ++c) sums[c] = fmaf(coefficient, atom[c], sums[c]);
        }
      }
    }
  }
  if (!real || channel >= atoms.width) return;
  const float gain = finishing.gains ? finishing.gains[signal] : 1;
  SignalElement<kOut> values[kOwn];
#pragma unroll
  for (unsigned c = 0; c < kOwn; ++c)
    values[c] = channel + c < atoms.width ? narrowed<kOut>(finished(finishing, gain, channel + c, sums[c]))
                                          : SignalElement<kOut>{};
  auto* out = static_cast<SignalElement<kOut>*>(signals.out) + signal * signals.stride + channel;
  if (channel + kOwn <= atoms.width && signals.stride % kOwn == 0) {
    store_together<kOut>(out, values);
  } else {
#pragma unroll
    for (unsigned c = 0; c < kOwn; ++c)
      if (channel + c < atoms.width) out[c] = values[c];
  }
}

// Atoms of 8 bits -----------------------------------------------------------------------------------------

constexpr unsigned kBankGroups =
    8;  ///< of 16 bytes: lines of so many neighbouring atoms lie in different ones

/// Where a signal's pairs go: its four of a quad are side by side.
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
  KVCODEC_SHARED_ARRAY(uint32_t, all_ids, kSignalWarps * kMostLevelPairs);
  KVCODEC_SHARED_ARRAY(uint32_t, all_products, kSignalWarps * kMostLevelPairs);
  KVCODEC_SHARED_ARRAY(uint32_t, all_taken, kSignalWarps * kBankGroups);
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const size_t signal = size_t{blockIdx.x} * kSignalWarps + warp;
  if (signal >= count) return;  // a whole warp
  uint32_t* ids = all_ids + warp * kMostLevelPairs;
  uint32_t* products = all_products + warp * kMostLevelPairs;
  const auto [first, end] = pairs_of(codes, signal);
  const auto pairs = static_cast<unsigned>(end - first);
  float largest = 0;
  for (unsigned k = lane; k < pairs; k += kWarp) {
    const Pair pair = pair_at(codes, atoms.count, signal, first + k, bad);
    const float product = pair.coefficient * atoms.scales[pair.id];
    ids[k] = pair.id, products[k] = bits_of(product);
    largest = fmaxf(largest, fabsf(product));
  }
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  constexpr auto kMost = static_cast<float>(kLargestWeight);
  const bool any = largest >= kLeastWeight;
  const float factor = any ? kMost / largest : 0;
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
    prepared.units[signal] = any ? largest / kMost : 0;
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
template <bool kResident, bool kWide, SignalType kOut>
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
    auto* out = static_cast<SignalElement<kOut>*>(signals.out) + signal * signals.stride + first;
    // 16 bytes at a time.
    constexpr unsigned kPerStore = 16 / sizeof(SignalElement<kOut>);
    const bool whole = first + kLevelChannels <= atoms.width && signals.stride % kPerStore == 0;
#pragma unroll
    for (unsigned c = 0; c < kLevelChannels; c += kPerStore) {
      SignalElement<kOut> values[kPerStore];
#pragma unroll
      for (unsigned i = 0; i < kPerStore; ++i) {
        const unsigned channel = first + c + i < atoms.width ? first + c + i : first;
        const float sum = static_cast<float>(sums[(c + i) / 4][(c + i) % 4]) * unit;
        values[i] = narrowed<kOut>(finished(finishing, gain, channel, sum));
      }
      if (whole) {
        store_together<kOut>(out + c, values);
      } else {
#pragma unroll
        for (unsigned i = 0; i < kPerStore; ++i)
          if (first + c + i < atoms.width) out[c + i] = values[i];
      }
    }
  }
}

// Launchers ---------------------------------------------------------------------------------------

namespace {

unsigned divide_up(size_t n, size_t by) { return static_cast<unsigned>((n + by - 1) / by); }

template <AtomType kType, SignalType kOut>
Status run(const DeviceAtoms& atoms, const DeviceCodes& codes, const DeviceFinishing& finishing,
           const DeviceSignals& signals, unsigned long long* bad, StreamHandle stream) {
  // As many lanes as a signal has work for.
  const unsigned wanted = divide_up(atoms.width, kChannels<kType>);
  const unsigned lanes = wanted <= 8 ? 8 : wanted <= 16 ? 16 : kWarp;
  const dim3 grid(divide_up(signals.count, kSignalWarps * kWarp / lanes), divide_up(wanted, lanes));
  return launch(reconstruct<kType, kOut>, grid, kSignalWarps * kWarp, 0, stream, atoms, codes, finishing,
                signals, lanes, bad);
}

template <AtomType kType>
Status run_to(const DeviceAtoms& atoms, const DeviceCodes& codes, const DeviceFinishing& finishing,
              const DeviceSignals& signals, unsigned long long* bad, StreamHandle stream) {
  if (signals.type == SignalType::f32)
    return run<kType, SignalType::f32>(atoms, codes, finishing, signals, bad, stream);
  if (signals.type == SignalType::bf16)
    return run<kType, SignalType::bf16>(atoms, codes, finishing, signals, bad, stream);
  return run<kType, SignalType::f16>(atoms, codes, finishing, signals, bad, stream);
}

template <bool kResident, bool kWide, SignalType kOut>
Status combine(const DeviceLevels& atoms, const LevelCodes& prepared, const DeviceFinishing& finishing,
               const DeviceSignals& signals, unsigned multiprocessors, StreamHandle stream) {
  const size_t shared = kResident ? size_t{atoms.count} * kLevelChannels : 0;
  // A slice has as many blocks as give each multiprocessor one, and no more than there are signals for.
  const unsigned slices = atoms.num_slices();
  unsigned blocks = multiprocessors / slices;
  const unsigned most = divide_up(signals.count, kLevelThreads);
  if (blocks > most) blocks = most;
  if (blocks == 0) blocks = 1;
  return launch(combine_levels<kResident, kWide, kOut>, dim3(blocks, slices), kLevelThreads, shared, stream,
                atoms, prepared, finishing, signals);
}

template <SignalType kOut>
Status combine_to(const DeviceLevels& atoms, const LevelCodes& prepared, const DeviceFinishing& finishing,
                  const DeviceSignals& signals, unsigned multiprocessors, size_t shared_bytes,
                  StreamHandle stream) {
  if (!prepared.pairs)
    return combine<false, true, kOut>(atoms, prepared, finishing, signals, multiprocessors, stream);
  if (size_t{atoms.count} * kLevelChannels > shared_bytes)
    return combine<false, false, kOut>(atoms, prepared, finishing, signals, multiprocessors, stream);
  return combine<true, false, kOut>(atoms, prepared, finishing, signals, multiprocessors, stream);
}

}  // namespace

Status run_reconstruct(AtomType type, const DeviceAtoms& atoms, const DeviceCodes& codes,
                       const DeviceFinishing& finishing, const DeviceSignals& signals,
                       unsigned long long* bad, StreamHandle stream) {
  if (type == AtomType::f32) return run_to<AtomType::f32>(atoms, codes, finishing, signals, bad, stream);
  if (type == AtomType::f16) return run_to<AtomType::f16>(atoms, codes, finishing, signals, bad, stream);
  return run_to<AtomType::bf16>(atoms, codes, finishing, signals, bad, stream);
}

Status run_prepare_levels(const DeviceLevels& atoms, const DeviceCodes& codes, size_t count,
                          const LevelCodes& prepared, unsigned long long* bad, StreamHandle stream) {
  const unsigned blocks = divide_up(count, kSignalWarps);
  if (prepared.pairs)
    return launch(prepare_levels<false>, blocks, kSignalWarps * kWarp, 0, stream, atoms, codes, count,
                  prepared, bad);
  return launch(prepare_levels<true>, blocks, kSignalWarps * kWarp, 0, stream, atoms, codes, count, prepared,
                bad);
}

Status run_combine_levels(const DeviceLevels& atoms, const LevelCodes& prepared,
                          const DeviceFinishing& finishing, const DeviceSignals& signals,
                          unsigned multiprocessors, size_t shared_bytes, StreamHandle stream) {
  if (signals.count == 0) return 0;
  if (signals.type == SignalType::f32)
    return combine_to<SignalType::f32>(atoms, prepared, finishing, signals, multiprocessors, shared_bytes,
                                       stream);
  if (signals.type == SignalType::bf16)
    return combine_to<SignalType::bf16>(atoms, prepared, finishing, signals, multiprocessors, shared_bytes,
                                        stream);
  return combine_to<SignalType::f16>(atoms, prepared, finishing, signals, multiprocessors, shared_bytes,
                                     stream);
}

}  // namespace kvcodec::cuda
