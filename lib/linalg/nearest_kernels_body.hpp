// The loops of nearest_kernels.hpp that differ between instruction sets by the vector type only. The
// including file defines, in an unnamed namespace, `Vector` with kWidth floats and the functions used here;
// everything here stands in an unnamed namespace too, so that no file can get another's copy (see
// lib/core/cpu.hpp).
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/linalg/nearest_kernels.hpp"

namespace kvcodec::nearest_kernels {
namespace {

/// Sums of kRowsNow rows with kColumns vectors of entries, the panels of which lie panel_stride apart.
template <size_t kRowsNow, size_t kColumns>
void float_step(const float* panels, size_t panel_stride, size_t d, const float* bias, const float* rows,
                size_t row_stride, float* scores, size_t score_stride) {
  constexpr size_t kPerPanel = kPanel / Vector::kWidth;
  Vector sums[kRowsNow][kColumns];
#pragma GCC unroll 4
  for (size_t c = 0; c < kColumns; ++c) {
    const Vector start = Vector::load(bias + c * Vector::kWidth);
#pragma GCC unroll 6
    for (size_t r = 0; r < kRowsNow; ++r) sums[r][c] = start;
  }
  for (size_t j = 0; j < d; ++j) {
    Vector entries[kColumns];
#pragma GCC unroll 4
    for (size_t c = 0; c < kColumns; ++c)
      entries[c] =
          Vector::load(panels + c / kPerPanel * panel_stride + j * kPanel + c % kPerPanel * Vector::kWidth);
#pragma GCC unroll 6
    for (size_t r = 0; r < kRowsNow; ++r) {
      const Vector value = Vector::all(rows[r * row_stride + j]);
#pragma GCC unroll 4
      for (size_t c = 0; c < kColumns; ++c) sums[r][c] = fused(value, entries[c], sums[r][c]);
    }
  }
#pragma GCC unroll 6
  for (size_t r = 0; r < kRowsNow; ++r)
#pragma GCC unroll 4
    for (size_t c = 0; c < kColumns; ++c) sums[r][c].store(scores + r * score_stride + c * Vector::kWidth);
}

template <size_t kColumns>
void float_rows(const float* panels, size_t panel_stride, size_t d, const float* bias, const float* rows,
                size_t row_stride, size_t count, float* scores, size_t score_stride) {
  size_t i = 0;
  for (; i + kRows <= count; i += kRows)
    float_step<kRows, kColumns>(panels, panel_stride, d, bias, rows + i * row_stride, row_stride,
                                scores + i * score_stride, score_stride);
  for (; i < count; ++i)
    float_step<1, kColumns>(panels, panel_stride, d, bias, rows + i * row_stride, row_stride,
                            scores + i * score_stride, score_stride);
}

/// kColumns vectors of entries at a time: as many as leave all sums in registers.
template <size_t kColumns>
void screen_floats_by(const float* panels, size_t d, const float* bias, size_t entries, const float* rows,
                      size_t row_stride, size_t count, float* scores, size_t score_stride) {
  constexpr size_t kStep = kColumns * Vector::kWidth;
  for (size_t first = 0; first < entries; first += kStep)
    float_rows<kColumns>(panels + first / kPanel * d * kPanel, d * kPanel, d, bias + first, rows, row_stride,
                         count, scores + first, score_stride);
}

float highest(const float* scores, const float* margins, float error, size_t n) {
  const Vector minus_error = Vector::all(-error);
  Vector best = fused(minus_error, Vector::load(margins), Vector::load(scores));
  for (size_t i = Vector::kWidth; i < n; i += Vector::kWidth)
    best = larger(best, fused(minus_error, Vector::load(margins + i), Vector::load(scores + i)));
  float lanes[Vector::kWidth];
  best.store(lanes);
  float result = lanes[0];
  for (size_t i = 1; i < Vector::kWidth; ++i) result = lanes[i] > result ? lanes[i] : result;
  return result;
}

void highest_of_classes(const float* scores, const float* margins, float error, size_t n, float shift,
                        float* best) {
  const Vector all_shift = Vector::all(shift), minus_error = Vector::all(-error);
  for (size_t c = 0; c < kTile; c += Vector::kWidth) {
    Vector highest_here = Vector::load(best + c);
    for (size_t i = c; i < n; i += kTile) {
      const Vector score = fused(minus_error, Vector::load(margins + i), Vector::load(scores + i));
      highest_here = larger(highest_here, sum(score, all_shift));
    }
    highest_here.store(best + c);
  }
}

}  // namespace
}  // namespace kvcodec::nearest_kernels
