// The inner loop of reconstruction from atoms of 8 bits, once per instruction set (lib/core/cpu.hpp). Inside
// lib/sparse only.
//
// A dictionary is cut in slices of kSliceChannels channels, so that a slice of 8192 atoms takes 512 KiB and
// stays in the second-level cache of today's processors. In a slice an atom is one line of 64 bytes, its
// levels with kLevelOffset added. Within a line the sixteen groups of four lie transposed as a 4 x 4 matrix
// (byte 16 a + 4 b + c is channel 16 b + 4 a + c), so that interleaving the bytes of four atoms within
// 128-bit lanes, as wide instructions do, puts channels in order.
//
// Sums are integers and exact; what follows them is one rounding per operation in a fixed order. All levels
// give the same bits, and the order of pairs does not matter.
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

/// Pairs of a code whose sums of weight times level surely fit 32 bits.
enum : size_t { kMostPairs = 512 };

/// Pairs are taken four at a time; missing ones have weight 0. Room for them is kept in whole vectors, and
/// kernels ask the cache for lines of up to kAhead pairs behind a code's last.
enum : size_t { kPairStep = 16, kAhead = 32 };

/// One signal: unit * (sum of weight * level).
struct Code {
  const uint32_t* lines;   ///< where the atom of each pair begins in a slice
  const uint8_t* weights;  ///< 2 bytes per pair, see Kernels::prepare
  uint32_t quads;          ///< ceil(pairs / 4)
  uint32_t room;           ///< pairs rounded up to kPairStep
  int32_t correction;      ///< -kLevelOffset * sum of the weights, wrapped around
  float unit;
  float gain;
};

enum class Output { f32, bf16, f16 };

/// What is done to signals on the way out, each operation rounded to f32: times gain, times scale of the
/// channel, plus its mean; then rounded to the output's type. Null or false: not done.
struct Finish {
  bool gain;
  const float* scale;  ///< of the slice's channels
  const float* mean;
  Output type;
};

struct Kernels {
  /// Rounds the weights of `pairs` pairs, atom ids[k] weighing coefficients[k] * scales[ids[k]], to integers
  /// (reconstruct.hpp) and sets unit and correction. Fills lines and weights, which have code.room pairs: in
  /// the order of pairs as 16-bit integers, or all high bytes and then all low ones, as combine takes them.
  void (*prepare)(const uint32_t* ids, const float* coefficients, size_t pairs, const float* scales,
                  uint32_t* lines, uint8_t* weights, Code* code);
  /// Signals of one slice: the first `width` (1..64) channels of signal i to out + i * stride elements.
  void (*combine)(const uint8_t* slice, const Code* codes, size_t signals, size_t width, const Finish& finish,
                  void* out, size_t stride);
};

namespace scalar {
const Kernels& table();
}
KVCODEC_WIDE_VARIANT(avx2, scalar, const Kernels& table();)

/// The kernels of the level in force.
const Kernels& best();

}  // namespace kvcodec::combine_kernels
