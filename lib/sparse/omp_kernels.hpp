// The inner loops of orthogonal matching pursuit and of reconstruction, once per instruction set
// (lib/core/cpu.hpp). Inside lib/sparse only.
//
// Every sum has one fixed order: floats in 16 lanes, doubles in 8 (element i goes to lane i mod 16 or 8,
// lanes are added as a tree: upper half onto lower half), products rounded before they are added unless it
// says fused, so that all levels give the same bits. Lengths `m` are multiples of kFloatLanes and `n` of
// kTile; callers pad with zeros.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kvcodec::omp_kernels {

enum : size_t {
  kFloatLanes = 16,
  kDoubleLanes = 8,
  kTile = 128,  // atoms per tile of the screening: eight 512-bit sums of 32-bit integers, all in registers
};

/// One level's kernels.
struct Kernels {
  /// The screened correlation of atom j is
  ///     c(j) = start[j] - scale * (sum over i < pairs of rows[2i][j] * low(i) + rows[2i + 1][j] * high(i))
  /// with the 16-bit weights low(i), high(i) in the halves of weights[i] (low half first) and the sum in
  /// 32-bit integers that wrap around. peaks[t] = the largest |c(j)| of tile t of n / kTile; NaN in start[j]
  /// leaves atom j out.
  void (*screen)(const float* start, const int16_t* const* rows, const uint32_t* weights, size_t pairs,
                 float scale, size_t n, float* peaks);
  /// The kTile screened correlations |c(j)| of the tile that begins at atom `first`.
  void (*screen_tile)(const float* start, const int16_t* const* rows, const uint32_t* weights, size_t pairs,
                      float scale, size_t first, float* out);
  /// out[i] = rows[i] . x for i < count, rows and x of m floats.
  void (*dots)(const float* const* rows, size_t count, const float* x, size_t m, float* out);
  /// out = y - sum over i of x[i] * rows[i] in double, in the order of i.
  void (*residual)(const float* y, const float* const* rows, const double* x, size_t count, size_t m,
                   double* out);
  /// out[i] = rows[i] . r in double, for i < count.
  void (*dots_double)(const float* const* rows, size_t count, const double* r, size_t m, double* out);
  /// u: upper triangular k x k, column j at u + j * stride, zero below its diagonal, stride a multiple of
  /// kDoubleLanes. v = u' g and w = u v; g, v, w have `stride` elements, g zero from k on.
  void (*apply_both)(const double* u, size_t stride, size_t k, const double* g, double* v, double* w);
  /// One slice of reconstruction. slice: (atoms, 16). Signal i of `signals` is the sum over k in [offsets[i],
  /// offsets[i + 1]) of coefficients[k] times row ids[k] of the slice; its first `width` (1..16) values go to
  /// out + i * stride. The k-th pair of a signal is added to sum k mod 4, fused; the sums are added as (0 +
  /// 2) + (1 + 3).
  void (*combine)(const float* slice, const uint32_t* ids, const float* coefficients, const uint64_t* offsets,
                  size_t signals, size_t width, float* out, size_t stride);
  /// Largest |row[j]| over j < n but for j == skip.
  int16_t (*peak_but)(const int16_t* row, size_t n, size_t skip);
  /// out[j] = in[j] * scale rounded to the nearest integer, ties to even; the products lie within 16 bits.
  void (*round_to_words)(const float* in, float scale, size_t n, int16_t* out);
};

namespace scalar {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

/// The kernels of the level in force.
const Kernels& best();

}  // namespace kvcodec::omp_kernels
