// The bodies of attention_kernels.hpp. The file that includes this one has defined, in an unnamed namespace
// of kvcodec::attention_kernels: Floats (16 lanes), zero, load, store, spread (one value in all lanes), fused
// (a * b + c), fold (16 vectors to the tree sums of their lanes), and Row<type>, made from a pointer to a
// row: all(j) gives elements [j, j + 16), some(j, n) the first n of them and zeros, ask<vectors>(row, j) asks
// for those from j on ahead of time.
#pragma once

#include <stddef.h>

namespace kvcodec::attention_kernels {
namespace {

/// Vectors of a row that are worked on together: 128 dimensions, in registers.
constexpr size_t kSlice = 8;

/// Queries worked on together.
constexpr size_t kQueries = 8;

/// Rows that are asked for ahead: chosen tokens lie anywhere, and memory takes as long as a few rows do.
constexpr size_t kAhead = 6;

/// Adds kVectors vectors of up to 16 rows, from dimension `from` on, to the lanes of their products. The last
/// vector has `rest` elements if kPartial.
template <class Row, size_t kVectors, bool kPartial>
void dot_slice(const void* const* rows, size_t n, size_t left, const float* queries, size_t stride,
               size_t count, size_t from, size_t rest, Floats (*lanes)[kLanes]) {
  for (size_t t = 0; t < n; ++t) {
    if (t + kAhead < left) Row::template ask<kVectors>(rows[t + kAhead], from);
    const typename Row::template Slice<kVectors> row(rows[t], from);
    Floats values[kVectors];
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v)
      values[v] = kPartial && v + 1 == kVectors ? row.some(v, rest) : row.all(v);
    for (size_t q = 0; q < count; ++q) {
      Floats sum = lanes[q][t];
#pragma GCC unroll 8
      for (size_t v = 0; v < kVectors; ++v)
        sum = fused(values[v], load(queries + q * stride + from + v * kLanes), sum);
      lanes[q][t] = sum;
    }
  }
}

template <class Row, bool kPartial>
void dot_slices(size_t vectors, const void* const* rows, size_t n, size_t left, const float* queries,
                size_t stride, size_t count, size_t from, size_t rest, Floats (*lanes)[kLanes]) {
#define KVCODEC_CASE(v) \
  case v:               \
    return dot_slice<Row, v, kPartial>(rows, n, left, queries, stride, count, from, rest, lanes)
  switch (vectors) {
    KVCODEC_CASE(1);
    KVCODEC_CASE(2);
    KVCODEC_CASE(3);
    KVCODEC_CASE(4);
    KVCODEC_CASE(5);
    KVCODEC_CASE(6);
    KVCODEC_CASE(7);
    KVCODEC_CASE(8);
  }
#undef KVCODEC_CASE
}

template <class Row>
void dots(const void* const* rows, size_t n, const float* queries, size_t count, size_t dims, float* out,
          size_t out_stride) {
  const size_t vectors = (dims + kLanes - 1) / kLanes, stride = vectors * kLanes, rest = dims % kLanes;
  for (; count > 0;) {
    const size_t some = count < kQueries ? count : kQueries;
    for (size_t t = 0; t < n; t += kLanes) {
      const size_t tokens = n - t < kLanes ? n - t : kLanes;
      Floats lanes[kQueries][kLanes];
      for (size_t q = 0; q < some; ++q)
        for (size_t i = 0; i < kLanes; ++i) lanes[q][i] = zero();
      for (size_t v = 0; v < vectors; v += kSlice) {
        const size_t slice = vectors - v < kSlice ? vectors - v : kSlice;
        if (v + slice == vectors && rest > 0)
          dot_slices<Row, true>(slice, rows + t, tokens, n - t, queries, stride, some, v * kLanes, rest,
                                lanes);
        else
          dot_slices<Row, false>(slice, rows + t, tokens, n - t, queries, stride, some, v * kLanes, 0, lanes);
      }
      for (size_t q = 0; q < some; ++q) {
        float products[kLanes];
        fold(lanes[q], products);
        for (size_t i = 0; i < tokens; ++i) out[q * out_stride + t + i] = products[i];
      }
    }
    queries += some * stride;
    out += some * out_stride;
    count -= some;
  }
}

/// Weighted sums of kVectors vectors of all rows for kCount queries, which stay in registers.
template <class Row, size_t kCount, size_t kVectors, bool kPartial>
void sum_slice(const void* const* rows, size_t n, const float* weights, size_t weight_stride, size_t from,
               size_t rest, float* out, size_t stride) {
  Floats sums[kCount][kVectors];
#pragma GCC unroll 8
  for (size_t q = 0; q < kCount; ++q)
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) sums[q][v] = load(out + q * stride + from + v * kLanes);
  for (size_t t = 0; t < n; ++t) {
    if (t + kAhead < n) Row::template ask<kVectors>(rows[t + kAhead], from);
    const typename Row::template Slice<kVectors> row(rows[t], from);
    Floats weight[kCount];
#pragma GCC unroll 8
    for (size_t q = 0; q < kCount; ++q) weight[q] = spread(weights[q * weight_stride + t]);
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) {
      const Floats values = kPartial && v + 1 == kVectors ? row.some(v, rest) : row.all(v);
#pragma GCC unroll 8
      for (size_t q = 0; q < kCount; ++q) sums[q][v] = fused(values, weight[q], sums[q][v]);
    }
  }
#pragma GCC unroll 8
  for (size_t q = 0; q < kCount; ++q)
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) store(sums[q][v], out + q * stride + from + v * kLanes);
}

/// Sums for kCount queries from vector v on: kWidth vectors at a time, then fewer.
template <class Row, size_t kCount, size_t kWidth>
void sums_of(const void* const* rows, size_t n, const float* weights, size_t weight_stride, size_t dims,
             float* out, size_t v = 0) {
  const size_t vectors = (dims + kLanes - 1) / kLanes, stride = vectors * kLanes, rest = dims % kLanes;
  for (; v + kWidth <= vectors; v += kWidth)
    if (v + kWidth == vectors && rest > 0)
      sum_slice<Row, kCount, kWidth, true>(rows, n, weights, weight_stride, v * kLanes, rest, out, stride);
    else
      sum_slice<Row, kCount, kWidth, false>(rows, n, weights, weight_stride, v * kLanes, 0, out, stride);
  if constexpr (kWidth > 1)
    if (v < vectors) sums_of<Row, kCount, kWidth / 2>(rows, n, weights, weight_stride, dims, out, v);
}

template <class Row>
void sums(const void* const* rows, size_t n, const float* weights, size_t weight_stride, size_t count,
          size_t dims, float* out) {
  const size_t stride = (dims + kLanes - 1) / kLanes * kLanes;
  while (count > 0) {
    size_t done = 1;
    // Sixteen sums in registers leave room for the rest.
    if (count >= 8)
      sums_of<Row, 8, 2>(rows, n, weights, weight_stride, dims, out), done = 8;
    else if (count >= 4)
      sums_of<Row, 4, 4>(rows, n, weights, weight_stride, dims, out), done = 4;
    else if (count >= 2)
      sums_of<Row, 2, 8>(rows, n, weights, weight_stride, dims, out), done = 2;
    else
      sums_of<Row, 1, 8>(rows, n, weights, weight_stride, dims, out);
    weights += done * weight_stride;
    out += done * stride;
    count -= done;
  }
}

constexpr Table kTable = {
    {dots<Row<kF32>>, dots<Row<kF16>>, dots<Row<kBf16>>, dots<Row<kTwoBit>>, dots<Row<kSignedTwoBit>>},
    {sums<Row<kF32>>, sums<Row<kF16>>, sums<Row<kBf16>>, sums<Row<kTwoBit>>, sums<Row<kSignedTwoBit>>}};

}  // namespace
}  // namespace kvcodec::attention_kernels
