// The loops of nearest_kernels.hpp that differ between instruction sets by their width only (see
// lib/core/cpu.hpp).
#pragma once

#include "lib/core/vectors.hpp"
#include "lib/linalg/nearest_kernels.hpp"

namespace kvcodec::nearest_kernels {
namespace {

using namespace vectors;

/// Entries scored side by side: the sums of one wait for each other.
constexpr size_t kAtOnce = KVCODEC_BY_WIDTH(1, 4);

template <size_t kCount>
KVCODEC_INLINE void exact_some(const float* row, const float* entries, size_t padded, const uint32_t* ids,
                               float* out) {
  const float* entry[kCount];
  for (size_t k = 0; k < kCount; ++k) entry[k] = entries + (size_t)ids[k] * padded;
  FloatLanes sums[kCount] = {};
  for (size_t j = 0; j < padded; j += kLanes)
    for (size_t part = 0; part < FloatLanes::kParts; ++part) {
      const size_t at = j + part * kWidth;
      const Floats value = load(row + at);
#pragma GCC unroll 4
      for (size_t k = 0; k < kCount; ++k) sums[k].parts[part] += value * load(entry[k] + at);
    }
  for (size_t k = 0; k < kCount; ++k) out[k] = sum_of(sums[k]);
}

void exact(const float* row, const float* entries, size_t padded, const uint32_t* ids, size_t count,
           float* out) {
  size_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce) exact_some<kAtOnce>(row, entries, padded, ids + i, out + i);
  for (; i < count; ++i) exact_some<1>(row, entries, padded, ids + i, out + i);
}

/// Sums of kRowsNow rows with kColumns vectors of entries, the panels of which lie panel_stride apart.
template <size_t kRowsNow, size_t kColumns>
void float_step(const float* panels, size_t panel_stride, size_t d, const float* bias, const float* rows,
                size_t row_stride, float* scores, size_t score_stride) {
  constexpr size_t kPerPanel = kPanel / kWidth;
  Floats sums[kRowsNow][kColumns];
#pragma GCC unroll 4
  for (size_t c = 0; c < kColumns; ++c) {
    const Floats start = load(bias + c * kWidth);
#pragma GCC unroll 6
    for (size_t r = 0; r < kRowsNow; ++r) sums[r][c] = start;
  }
  for (size_t j = 0; j < d; ++j) {
    Floats entries[kColumns];
#pragma GCC unroll 4
    for (size_t c = 0; c < kColumns; ++c)
      entries[c] = load(panels + c / kPerPanel * panel_stride + j * kPanel + c % kPerPanel * kWidth);
#pragma GCC unroll 6
    for (size_t r = 0; r < kRowsNow; ++r) {
      const Floats value = spread(rows[r * row_stride + j]);
#pragma GCC unroll 4
      for (size_t c = 0; c < kColumns; ++c) sums[r][c] = fused(value, entries[c], sums[r][c]);
    }
  }
#pragma GCC unroll 6
  for (size_t r = 0; r < kRowsNow; ++r)
#pragma GCC unroll 4
    for (size_t c = 0; c < kColumns; ++c) store(sums[r][c], scores + r * score_stride + c * kWidth);
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
  constexpr size_t kStep = kColumns * kWidth;
  for (size_t first = 0; first < entries; first += kStep)
    float_rows<kColumns>(panels + first / kPanel * d * kPanel, d * kPanel, d, bias + first, rows, row_stride,
                         count, scores + first, score_stride);
}

float highest(const float* scores, const float* margins, float error, size_t n) {
  const Floats minus_error = spread(-error);
  Floats best = fused(minus_error, load(margins), load(scores));
  for (size_t i = kWidth; i < n; i += kWidth)
    best = larger(best, fused(minus_error, load(margins + i), load(scores + i)));
  float lanes[kWidth];
  store(best, lanes);
  float result = lanes[0];
  for (size_t i = 1; i < kWidth; ++i) result = lanes[i] > result ? lanes[i] : result;
  return result;
}

void highest_of_classes(const float* scores, const float* margins, float error, size_t n, float shift,
                        float* best) {
  const Floats all_shift = spread(shift), minus_error = spread(-error);
  for (size_t c = 0; c < kTile; c += kWidth) {
    Floats highest_here = load(best + c);
    for (size_t i = c; i < n; i += kTile) {
      const Floats score = fused(minus_error, load(margins + i), load(scores + i));
      highest_here = larger(highest_here, score + all_shift);
    }
    store(highest_here, best + c);
  }
}

}  // namespace
}  // namespace kvcodec::nearest_kernels
