// attention_kernels.hpp in vectors (lib/core/cpu.hpp).
#pragma once

#include "lib/attention/attention_kernels.hpp"
#include "lib/core/vectors.hpp"

namespace kvcodec::attention_kernels {
namespace {

typedef vectors::FloatLanes Floats;
using vectors::kWidth;
constexpr size_t kParts = Floats::kParts;

KVCODEC_INLINE Floats load(const float* from) {
  Floats value;
  for (size_t i = 0; i < kParts; ++i) value.parts[i] = vectors::load(from + i * kWidth);
  return value;
}
KVCODEC_INLINE void store(const Floats& value, float* to) {
  for (size_t i = 0; i < kParts; ++i) vectors::store(value.parts[i], to + i * kWidth);
}
KVCODEC_INLINE Floats spread(float value) {
  Floats all;
  for (size_t i = 0; i < kParts; ++i) all.parts[i] = vectors::spread(value);
  return all;
}
KVCODEC_INLINE Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  Floats sum;
  for (size_t i = 0; i < kParts; ++i) sum.parts[i] = vectors::fused(a.parts[i], b.parts[i], c.parts[i]);
  return sum;
}

#ifdef __AVX512F__
/// All 16 trees at once: each step adds one half of the lanes of two vectors to the other and leaves both in
/// one.
KVCODEC_INLINE void fold(const Floats* values, float* out) {
  __m512 eight[8], four[4], two[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512 a = values[2 * i].parts[0], b = values[2 * i + 1].parts[0];
    eight[i] = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    four[i] = _mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0x88) +
              _mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0xdd);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    two[i] = _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44) +
             _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee);
  const __m512 one = _mm512_shuffle_ps(two[0], two[1], 0x88) + _mm512_shuffle_ps(two[0], two[1], 0xdd);
  // Place 4 l + j has vector 4 j + l.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_ps(out, _mm512_permutexvar_ps(order, one));
}
#else
KVCODEC_INLINE void fold(const Floats* values, float* out) {
  for (size_t i = 0; i < kLanes; ++i) out[i] = vectors::sum_of(values[i]);
}
#endif

/// The first n elements, 1 to 15, and zeros.
KVCODEC_INLINE Floats load_first(const float* from, size_t n) {
  if constexpr (kParts == 1) return {vectors::load_first(from, n)};
  float padded[kLanes] = {};
  memcpy(padded, from, n * sizeof(*from));
  return load(padded);
}

/// Number of vectors of a row that are processed together: 64 dimensions. Narrower ends go vector by vector.
constexpr size_t kSlice = 4;

/// Number of queries whose products are computed together.
constexpr size_t kQueries = 8;

/// Number of queries whose sums stay in registers together, and their number of vectors: 16 registers hold only one.
constexpr size_t kSummed = 4, kSummedSlice = kParts == 1 ? kSlice : 1;

/// Number of rows that are prefetched: chosen tokens lie anywhere, and memory takes as long as a few rows do.
constexpr size_t kAhead = 6;

/// Vectors of some rows, from dimension `from` on. `rest`: elements of a last vector that is not full, else 0.
struct Part {
  const float* const* rows;
  size_t n, left;  // rows, and the number of rows from the first of them on
  size_t dims, from, rest;

  /// Vector v of row t.
  KVCODEC_INLINE Floats vector(size_t t, size_t v) const {
    const float* const at = rows[t] + from + v * kLanes;
    return rest > 0 ? load_first(at, rest) : load(at);
  }
  /// Prefetches a row behind row t, when the first vectors of t are used.
  KVCODEC_INLINE void ask_ahead(size_t t) const {
    if (from > 0 || t + kAhead >= left) return;
    for (size_t i = 0; i < dims; i += kLanes) vectors::look_ahead(rows[t + kAhead] + i);
  }
};

/// Adds kVectors vectors of up to 16 rows to the lanes of their products with queries.
template <size_t kVectors>
void dot_slice(const Part& part, const float* queries, size_t stride, size_t count, Floats (*lanes)[kLanes]) {
  for (size_t t = 0; t < part.n; ++t) {
    part.ask_ahead(t);
    Floats values[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) values[v] = part.vector(t, v);
    for (size_t q = 0; q < count; ++q) {
      Floats sum = lanes[q][t];
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v)
        sum = fused(values[v], load(queries + q * stride + part.from + v * kLanes), sum);
      lanes[q][t] = sum;
    }
  }
}

void dots(const Rows& rows, const float* queries, size_t count, float* out, size_t out_stride) {
  const size_t vectors = (rows.dims + kLanes - 1) / kLanes, full = rows.dims / kLanes,
               stride = vectors * kLanes;
  for (size_t some = 0; count > 0; queries += some * stride, out += some * out_stride, count -= some) {
    some = count < kQueries ? count : kQueries;
    for (size_t t = 0; t < rows.n; t += kLanes) {
      const size_t tokens = rows.n - t < kLanes ? rows.n - t : kLanes;
      Floats lanes[kQueries][kLanes];
      for (size_t q = 0; q < some; ++q)
        for (size_t i = 0; i < kLanes; ++i) lanes[q][i] = {};
      Part part = {rows.rows + t, tokens, rows.n - t, rows.dims, 0, 0};
      size_t v = 0;
      for (; v + kSlice <= full; v += kSlice, part.from += kSlice * kLanes)
        dot_slice<kSlice>(part, queries, stride, some, lanes);
      for (; v < vectors; ++v, part.from += kLanes) {
        part.rest = v == full ? rows.dims % kLanes : 0;
        dot_slice<1>(part, queries, stride, some, lanes);
      }
      for (size_t q = 0; q < some; ++q) {
        float products[kLanes];
        fold(lanes[q], products);
        memcpy(out + q * out_stride + t, products, tokens * sizeof(*products));
      }
    }
  }
}

/// Weighted sums of kVectors vectors of all rows for kCount queries, which stay in registers.
template <size_t kCount, size_t kVectors>
void sum_slice(const Part& part, const float* weights, size_t weight_stride, float* out, size_t stride) {
  Floats sums[kCount][kVectors];
#pragma GCC unroll 4
  for (size_t q = 0; q < kCount; ++q)
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) sums[q][v] = load(out + q * stride + part.from + v * kLanes);
  for (size_t t = 0; t < part.n; ++t) {
    part.ask_ahead(t);
    Floats weight[kCount];
#pragma GCC unroll 4
    for (size_t q = 0; q < kCount; ++q) weight[q] = spread(weights[q * weight_stride + t]);
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      const Floats values = part.vector(t, v);
#pragma GCC unroll 4
      for (size_t q = 0; q < kCount; ++q) sums[q][v] = fused(values, weight[q], sums[q][v]);
    }
  }
#pragma GCC unroll 4
  for (size_t q = 0; q < kCount; ++q)
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) store(sums[q][v], out + q * stride + part.from + v * kLanes);
}

void sums(const Rows& rows, const float* weights, size_t weight_stride, size_t count, float* out) {
  const size_t vectors = (rows.dims + kLanes - 1) / kLanes, full = rows.dims / kLanes,
               stride = vectors * kLanes;
  for (size_t some = 0; count > 0; weights += some * weight_stride, out += some * stride, count -= some) {
    some = count < kSummed ? 1 : kSummed;
    Part part = {rows.rows, rows.n, rows.n, rows.dims, 0, 0};
    size_t v = 0;
    if (some == kSummed)
      for (; v + kSummedSlice <= full; v += kSummedSlice, part.from += kSummedSlice * kLanes)
        sum_slice<kSummed, kSummedSlice>(part, weights, weight_stride, out, stride);
    else
      for (; v + kSlice <= full; v += kSlice, part.from += kSlice * kLanes)
        sum_slice<1, kSlice>(part, weights, weight_stride, out, stride);
    for (; v < vectors; ++v, part.from += kLanes) {
      part.rest = v == full ? rows.dims % kLanes : 0;
      for (size_t q = 0; q < some; ++q)
        sum_slice<1, 1>(part, weights + q * weight_stride, weight_stride, out + q * stride, stride);
    }
  }
}

constexpr Table kTable = {dots, sums};

}  // namespace

const Table& KVCODEC_LEVEL::table() { return kTable; }

}  // namespace kvcodec::attention_kernels
