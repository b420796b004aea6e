// The inner loops of orthogonal matching pursuit and of reconstruction, once per instruction set
// (lib/core/cpu.hpp). Inside lib/sparse only.
//
// Every sum of floats has one fixed order: in 16 lanes (element i goes to lane i mod 16, lanes are added as a tree: upper half onto lower
// half), products rounded before they are added unless it says fused, so that all levels give the same bits. Lengths `m` are multiples of
// kFloatLanes and `n` of kTile; callers pad with zeros.
//
// Layouts
//   words   Gram rows in 16 bits: one row of n words per atom.
//   panels  tiles of such rows one behind the other: [rows][kScreen].
//   bytes   Gram rows in 8 bits, offset by 128: one row of n bytes per atom. Within each 64 atoms the sixteen
//           groups of four lie transposed as a 4 x 4 matrix (byte 16 a + 4 b + c is atom 16 b + 4 a + c), so
//           that interleaving the bytes of four rows within 128-bit lanes, as wide instructions do, puts
//           atoms in order.
//   quads   the bytes of four rows side by side: [n / kTile][quads][kTile][4]. Four products of bytes are one
//           instruction where there is VNNI.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::omp_kernels {

enum : size_t {
  kFloatLanes = 16,
  kTile = 128,   // atoms per tile of bytes
  kScreen = 32,  // atoms per tile of the screening: the fewer, the fewer need a look; one line of words
};
enum : int {
  kByteOffset = 128,  // bytes are stored with this added
  kDigit = 128,       // weights of byte rows are kDigit * high + low
};

/// Rows of the Gram matrix in bytes and their factors: full quads of rows, and one last quad of single rows.
/// The weights of a quad are four signed bytes in high[q], low[q]; the last quad's are behind the full ones'.
/// high_sum, low_sum: -kByteOffset times the sum of all high and low weights.
struct ByteRows {
  uint8_t* quads;
  size_t capacity;  // room for that many quads per tile
  size_t full;
  const uint8_t* last[4];
  bool keep;  // store the last quad as number `full`
  const uint32_t* high;
  const uint32_t* low;
  int32_t high_sum, low_sum;
  float scale;
};

/// n words of the Gram matrix, of one atom. factor * words[j] is subtracted from values; (unit * words[j])^2 is added to their spread.
struct GramRow {
  const int16_t* words;
  size_t n;
  float factor, unit;
};

/// One slice of a dictionary: rows of `row` floats, a multiple of 16 up to kTile, of which the first `width` (row - 15 to row) are wanted.
struct Slice {
  const float* values;
  size_t row, width;
};

/// Codes of signals: signal i has the pairs [offsets[i], offsets[i + 1]).
struct Codes {
  const uint32_t* ids;
  const float* coefficients;
  const uint64_t* offsets;
  size_t signals;
};

/// One level's kernels.
struct Kernels {
  /// peaks[t] = the largest |values[j]| of tile t of n / kScreen; NaN is left out.
  void (*peaks)(const float* values, size_t n, float* peaks);
  /// Bit j is set if |values[j]| of a tile is at least `limit`; a NaN is not.
  uint32_t (*at_least)(const float* values, float limit);
  /// values[j] = start[j] - scale * sum over the rows of a panel of weight times word j, for one tile.
  /// Weights are 16-bit halves: of weights[i], the low one for row 2 i. Sums are 32-bit integers that wrap
  /// around. Returns the largest |values[j]|; NaN in start[j] leaves atom j out.
  float (*screen)(const float* start, const int16_t* panel, const uint32_t* weights, size_t pairs,
                  float scale, float* values);
  /// peaks, spreads: the largest |values[j]| and sqrt(spread[j]) of each tile; NaN is left out.
  void (*apply_row)(const GramRow& row, float* values, float* spread, float* peaks, float* spreads);
  /// values[j] = start[j] - scale * sum over the rows of weight times byte j, for first <= j < last,
  /// multiples of kTile; peaks[t] = the largest |values[j]| of tile t of kTile. values may be null. This
  /// function and words_to_bytes are null where bytes are not faster: in avx2 and avx512.
  void (*screen_bytes)(const float* start, const ByteRows& rows, size_t first, size_t last, float* values,
                       float* peaks);
  /// out[i] = rows[i] . x for i < count, rows and x of m floats.
  void (*dots)(const float* const* rows, size_t count, const float* x, size_t m, float* out);
  /// out = y - sum over i of x[i] * rows[i], in the order of i.
  void (*residual)(const float* y, const float* const* rows, const float* x, size_t count, size_t m,
                   float* out);
  /// One slice of reconstruction. Signal i is the sum over its pairs, in order and fused, of coefficients[k]
  /// times row ids[k] of the slice; it goes to out + i * stride.
  void (*combine)(const Slice& slice, const Codes& codes, float* out, size_t stride);
  /// A row of words as bytes: (word * factor + 2^14) / 2^15 rounded down, within 8 bits, in the layout above.
  void (*words_to_bytes)(const int16_t* words, int16_t factor, size_t n, uint8_t* out);
};

KVCODEC_VARIANTS(const Kernels& table();)
KVCODEC_WIDE_VARIANT(avx512_vnni, avx512, const Kernels& table();)

/// The kernels of the level in force.
const Kernels& best();

}  // namespace kvcodec::omp_kernels
