// The inner loops of lib/linalg/nearest.cpp, once per instruction set (lib/core/cpu.hpp).
//
// Entries lie in panels of kPanel, side by side: floats [d][kPanel], bytes [quads][kPanel][4]. Rough scores
// are made for kTile entries at a time. The best scores of the classes of entries (those with the same id mod
// kTile) tell where the best ones begin: the B-th highest of them is a lower bound of the B-th highest score.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::nearest_kernels {

enum : size_t {
  kLanes = 16,
  kPanel = 16,
  kTile = 64,
  kMaxRanked = 64,
  kRows = 6,  // rows per step: with four 512-bit vectors of entries, 24 sums that stay in registers
};

/// Vectors whose largest magnitude is below this become zeros in bytes: the product of two smaller scales would underflow.
constexpr float kMinPeak = 1e-15f;

/// Entries to score roughly, the first of which begins at panels. count: a multiple of kTile.
struct FloatEntries {
  const float* panels;
  size_t d;
  const float* bias;
  size_t count;
};
struct ByteEntries {
  const uint8_t* panels;
  size_t quads;
  const float *scale, *bias;
  size_t count;
};

struct FloatRows {
  const float* values;
  size_t stride, count;
};
/// Rows in 8 bits: row i is value[i * quads * 4 ...] * scale[i]; start[i] = -128 times the sum of its bytes.
struct ByteRows {
  const int8_t* values;
  const float* scale;
  const int32_t* start;
  size_t count;
};

/// Rough scores of a row with n entries, a multiple of kTile. Each is off by at most error times its margin.
struct RoughScores {
  const float *scores, *margins;
  float error;
  size_t n;
};

struct Table {
  /// out[i] = product of row with the entry at entries + ids[i] * padded, in the lanes of nearest.hpp; padded: a multiple of kLanes.
  void (*exact)(const float* row, const float* entries, size_t padded, const uint32_t* ids, size_t count,
                float* out);
  /// Rough scores of rows with entries: scores[i * stride + j].
  void (*screen_floats)(const FloatEntries& entries, const FloatRows& rows, float* scores, size_t stride);
  /// The same with bytes; null where the machine has no instruction for them.
  void (*screen_bytes)(const ByteEntries& entries, const ByteRows& rows, float* scores, size_t stride);
  /// The highest score - error * margin. May be NaN if one of them is.
  float (*highest)(const RoughScores& rough);
  /// best[c] = the highest of best[c] and score - error * margin + shift of class c. A NaN replaces best[c],
  /// and the next number of the class replaces the NaN.
  void (*highest_of_classes)(const RoughScores& rough, float shift, float* best);
  /// The value at index n < kTile of kTile values in falling order. Equal values may be counted once or
  /// each; NaN counts as -infinity. Null where it gains no speed.
  float (*nth_highest)(const float* best, size_t n);
  /// One row (padded floats) minus the center in bytes. out: padded bytes. moments: the sums of squares of the bytes' values, of their
  /// difference from the centered row, and of the row; and the product of row and center. Returns the scale.
  float (*to_bytes)(const float* row, const float* center, size_t padded, int8_t* out, int32_t* sum,
                    float* moments);
  /// Finds values score + error * margin that are not below `limit` (NaN is not). Writes their ids, from first_id
  /// on, and the values, and up to kLanes more elements. Returns their number.
  size_t (*not_below)(const RoughScores& rough, float limit, uint32_t first_id, uint32_t* ids, float* kept);
  /// order[r] = the index of the value of rank r among n values, at most kMaxRanked, in falling order, equal
  /// ones by their index. False, and no order, where one is NaN or -infinity. Null where it gains no speed.
  bool (*rank)(const float* values, size_t n, uint32_t* order);
};

/// scalar has `exact` alone: without vectors nothing is gained by screening. avx512 has no screen_bytes.
KVCODEC_VARIANTS(const Table& table();)
KVCODEC_WIDE_VARIANT(avx512_vnni, avx512, const Table& table();)

}  // namespace kvcodec::nearest_kernels
