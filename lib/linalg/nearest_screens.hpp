// The loops of nearest_kernels.hpp that differ between instruction sets by their width only (see lib/core/cpu.hpp).
#pragma once

#include "lib/core/vectors.hpp"
#include "lib/linalg/nearest_kernels.hpp"

namespace kvcodec::nearest_kernels {
namespace {

using namespace vectors;

/// Entries scored side by side: the additions of one sum wait for each other.
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

/// Sums of the first kRowsNow rows with the first kColumns vectors of entries.
template <size_t kRowsNow, size_t kColumns>
void float_step(const FloatEntries& of, const FloatRows& rows, float* scores, size_t stride) {
  constexpr size_t kPerPanel = kPanel / kWidth;
  const size_t d = of.d;
  Floats sums[kRowsNow][kColumns];
#pragma GCC unroll 4
  for (size_t c = 0; c < kColumns; ++c) {
    const Floats start = load(of.bias + c * kWidth);
#pragma GCC unroll 6
    for (size_t r = 0; r < kRowsNow; ++r) sums[r][c] = start;
  }
  for (size_t j = 0; j < d; ++j) {
    Floats entries[kColumns];
#pragma GCC unroll 4
    for (size_t c = 0; c < kColumns; ++c)
      entries[c] = load(of.panels + (c / kPerPanel * d + j) * kPanel + c % kPerPanel * kWidth);
#pragma GCC unroll 6
    for (size_t r = 0; r < kRowsNow; ++r) {
      const Floats value = spread(rows.values[r * rows.stride + j]);
#pragma GCC unroll 4
      for (size_t c = 0; c < kColumns; ++c) sums[r][c] = fused(value, entries[c], sums[r][c]);
    }
  }
#pragma GCC unroll 6
  for (size_t r = 0; r < kRowsNow; ++r)
#pragma GCC unroll 4
    for (size_t c = 0; c < kColumns; ++c) store(sums[r][c], scores + r * stride + c * kWidth);
}

/// kColumns vectors of entries at a time: as many as keep all sums in registers.
template <size_t kColumns>
void screen_floats_by(const FloatEntries& entries, const FloatRows& rows, float* scores, size_t stride) {
  for (size_t first = 0; first < entries.count; first += kColumns * kWidth) {
    const FloatEntries some{entries.panels + first * entries.d, entries.d, entries.bias + first,
                            kColumns * kWidth};
    for (size_t i = 0, now; i < rows.count; i += now) {
      now = rows.count - i >= kRows ? (size_t)kRows : 1;
      const FloatRows few{rows.values + i * rows.stride, rows.stride, now};
      (now == kRows ? float_step<kRows, kColumns>
                    : float_step<1, kColumns>)(some, few, scores + i * stride + first, stride);
    }
  }
}

float highest(const RoughScores& rough) {
  const auto [scores, margins, error, n] = rough;
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

void highest_of_classes(const RoughScores& rough, float shift, float* best) {
  const auto [scores, margins, error, n] = rough;
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
