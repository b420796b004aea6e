// Sums of coefficient times atom (lib/sparse/reconstruct.hpp).
#pragma once

#include "cuda/kernel.cuh"
#include "cuda/reconstruct.cuh"
#include "lib/entropy/packed_id.hpp"

namespace kvcodec::cuda {

inline constexpr unsigned kSignalWarps = 8;

/// Channels that a lane reads of an atom at once: 16 bytes.
template <AtomType kType>
inline constexpr unsigned kChannels = kType == AtomType::f32 ? 4 : 8;

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

/// A warp per signal and slice of 32 * kChannels channels. Lanes decode 32 pairs, one each, and hand them on;
/// the atoms come from the second-level cache, eight of them under way at a time.
template <AtomType kType, class Out>
__global__ void __launch_bounds__(kSignalWarps* kWarp)
    reconstruct(DeviceAtoms atoms, DeviceCodes codes, size_t signals, Out* out, size_t out_stride,
                unsigned long long* bad) {
  constexpr unsigned kOwn = kChannels<kType>, kBytes = kType == AtomType::f32 ? 4 : 2;
  const size_t signal = size_t{blockIdx.x} * kSignalWarps + threadIdx.x / kWarp;
  if (signal >= signals) return;  // a whole warp
  const unsigned lane = threadIdx.x % kWarp, channel = (blockIdx.y * kWarp + lane) * kOwn;
  const bool reads = channel < atoms.stride;
  const uint64_t first = codes.offsets ? codes.offsets[signal] : signal * codes.each;
  const uint64_t end = codes.offsets ? codes.offsets[signal + 1] : first + codes.each;
  const auto* rows = static_cast<const unsigned char*>(atoms.rows) + size_t{reads ? channel : 0} * kBytes;

  float sums[kOwn] = {};
  for (uint64_t from = first; from < end; from += kWarp) {
    const uint64_t place = from + lane;
    uint32_t own_id = 0;
    float own_coefficient = 0;
    if (place < end) {
      if (codes.ids) {
        own_id = codes.ids[place];
      } else if (codes.bits > 0) {
        const uint64_t bit = place * codes.bits;
        own_id = packed_id(swap_bytes(codes.packed[bit / 32]), swap_bytes(codes.packed[bit / 32 + 1]),
                           static_cast<unsigned>(bit % 32), codes.bits);
      }
      own_coefficient =
          codes.coefficients ? codes.coefficients[place] : f16_to_float(codes.half_coefficients[place]);
      if (own_id >= atoms.count) {
        if (blockIdx.y == 0) atomicMin(bad, static_cast<unsigned long long>(place));
        own_id = 0;
      }
    }
    const auto count = static_cast<unsigned>(end - from < kWarp ? end - from : kWarp);
    constexpr unsigned kAtOnce = 8;
    for (unsigned i = 0; i < count; i += kAtOnce) {
      uint4 packed[kAtOnce];
      float coefficients[kAtOnce];
#pragma unroll
      for (unsigned n = 0; n < kAtOnce; ++n) {
        // Behind the last pair lanes hold atom 0, which is read and not used.
        const uint32_t id = __shfl_sync(kAllLanes, own_id, static_cast<int>(i + n));
        coefficients[n] = __shfl_sync(kAllLanes, own_coefficient, static_cast<int>(i + n));
        packed[n] = *reinterpret_cast<const uint4*>(rows + size_t{id} * atoms.stride * kBytes);
      }
#pragma unroll
      for (unsigned n = 0; n < kAtOnce; ++n) {
        if (i + n >= count) break;  // the whole warp
        float atom[kOwn];
        widen_atom<kType>(packed[n], atom);
#pragma unroll
        for (unsigned c = 0; c < kOwn; ++c) sums[c] = fmaf(coefficients[n], atom[c], sums[c]);
      }
    }
  }
#pragma unroll
  for (unsigned c = 0; c < kOwn; ++c)
    if (channel + c < atoms.width) {
      if constexpr (sizeof(Out) == 2)
        out[signal * out_stride + channel + c] = bf16_from_float(sums[c]);
      else
        out[signal * out_stride + channel + c] = sums[c];
    }
}

}  // namespace kvcodec::cuda
