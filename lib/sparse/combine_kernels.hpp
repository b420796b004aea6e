// The inner loop of reconstruction from atoms of 8 bits, once per instruction set (lib/core/cpu.hpp). Inside lib/sparse only.
//
// A dictionary is cut in slices of kSliceChannels channels, so that a slice of 8192 atoms takes 512 KiB and stays in the second-level cache
// of today's processors. In a slice an atom is one line of 64 bytes, its levels with kLevelOffset added. Within a line the sixteen groups
// of four lie transposed as a 4 x 4 matrix (byte 16 a + 4 b + c is channel 16 b + 4 a + c), so that interleaving the bytes of four atoms
// within 128-bit lanes, as wide instructions do, puts channels in order.
//
// Sums are integers and exact; every operation after them rounds once, in a fixed order. All levels give
// the same bits, and the order of pairs does not matter.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::combine_kernels {

enum : size_t { kSliceChannels = 64 };
enum : int { kLevelOffset = 128 };

/// Weights below this are taken for 0: the reciprocal of smaller ones would leave the range of floats.
constexpr float kLeastWeight = 0x1p-100f;

/// Weights are integers of at most this magnitude: two signed bytes, 256 * high + low.
enum : int { kLargestWeight = 127 * 256 + 127 };

/// Pairs of a code whose sums of weight times level surely fit 32 bits, which the wide kernels sum in.
enum : size_t { kMaxPairs = 512 };

/// Number of pairs that are taken at a time; missing ones have weight 0.
enum : size_t { kPairStep = 4 };

/// One signal: unit * (sum of weight * level).
struct Code {
  const uint32_t* lines;   ///< where the atom of each pair begins in a slice
  const int16_t* weights;  ///< of each pair
  size_t pairs;            ///< rounded up to kPairStep; in wide kernels up to kMaxPairs
  int64_t correction;      ///< -kLevelOffset * sum of the weights
  float unit;
  float gain;
};

/// Operations on signals before they are written, in this order, each rounded to f32: times gain,
/// times scale of the channel, plus its mean. Null or false: the operation is left out.
struct Finish {
  size_t width;  ///< 1..64: how many channels of the slice are wanted
  bool gain;
  const float* scale;  ///< of the slice's channels
  const float* mean;
};

/// The place of a channel in an atom's line.
constexpr size_t byte_of(size_t channel) { return channel / 4 % 4 * 16 + channel / 16 * 4 + channel % 4; }

/// Signals of one slice: the channels of signal i to out + i * stride.
using Combine = void(const uint8_t* slice, const Code* codes, size_t signals, const Finish& finish,
                     float* out, size_t stride);

namespace scalar {
Combine combine;
}
KVCODEC_WIDE_VARIANT(avx2, scalar, Combine combine;)

}  // namespace kvcodec::combine_kernels
