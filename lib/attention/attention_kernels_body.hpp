// The inner loops of attention, compiled three times: by attention.cpp for every machine and, as attention_kernels_avx2.cpp and
// attention_kernels_avx512.cpp, with wider instructions. They are plain loops, which compilers make wide by themselves: the lanes of a
// product and the order of a sum are fixed, so all levels give the same bits. In an unnamed namespace, so that no file can get
// another's copy (see lib/core/cpu.hpp).
#pragma once

#include <math.h>

#include "lib/attention/attention_kernels.hpp"

namespace kvcodec::attention_kernels {
namespace {

constexpr size_t padded(size_t dims) { return (dims + kLanes - 1) / kLanes * kLanes; }

/// Rows whose products with a query are made together, so that each step of adding lanes is a loop over rows.
constexpr size_t kTogether = 16;

/// Adds the lanes of each of kTogether rows: the upper half onto the lower one until one lane is left.
inline void add_lanes(const float (&lanes)[kTogether][kLanes], float* out) {
  float four[kTogether][4];
  for (size_t t = 0; t < kTogether; ++t)
    for (size_t i = 0; i < 4; ++i)
      four[t][i] = (lanes[t][i] + lanes[t][i + 8]) + (lanes[t][i + 4] + lanes[t][i + 12]);
  for (size_t t = 0; t < kTogether; ++t) out[t] = (four[t][0] + four[t][2]) + (four[t][1] + four[t][3]);
}

void dots(const Rows& rows, const float* queries, size_t count, float* out, size_t out_stride) {
  const size_t stride = padded(rows.dims), whole = rows.dims / kLanes * kLanes;
  for (size_t first = 0; first < rows.n; first += kTogether) {
    const size_t now = rows.n - first < kTogether ? rows.n - first : kTogether;
    for (size_t q = 0; q < count; ++q) {
      const float* const query = queries + q * stride;
      float lanes[kTogether][kLanes] = {}, products[kTogether];
      for (size_t t = 0; t < now; ++t) {
        const float* const row = rows.rows[first + t];
        float sums[kLanes] = {};
        for (size_t j = 0; j < whole; j += kLanes)
          for (size_t i = 0; i < kLanes; ++i) sums[i] = fmaf(row[j + i], query[j + i], sums[i]);
        for (size_t j = whole; j < rows.dims; ++j) sums[j - whole] = fmaf(row[j], query[j], sums[j - whole]);
        for (size_t i = 0; i < kLanes; ++i) lanes[t][i] = sums[i];
      }
      add_lanes(lanes, products);
      for (size_t t = 0; t < now; ++t) out[q * out_stride + first + t] = products[t];
    }
  }
}

/// Adds kRows rows to the sums of one query, each of which is read and written once.
template <size_t kRows>
void add_rows(const float* const* rows, size_t dims, const float* weights, float* sums) {
  for (size_t j = 0; j < dims; ++j) {
    float sum = sums[j];
    for (size_t t = 0; t < kRows; ++t) sum = fmaf(rows[t][j], weights[t], sum);
    sums[j] = sum;
  }
}

void sums(const Rows& rows, const float* weights, size_t weight_stride, size_t count, float* sums) {
  constexpr size_t kRows = 8;
  const size_t stride = padded(rows.dims);
  size_t t = 0;
  for (; t + kRows <= rows.n; t += kRows)
    for (size_t q = 0; q < count; ++q)
      add_rows<kRows>(rows.rows + t, rows.dims, weights + q * weight_stride + t, sums + q * stride);
  for (; t < rows.n; ++t)
    for (size_t q = 0; q < count; ++q)
      add_rows<1>(rows.rows + t, rows.dims, weights + q * weight_stride + t, sums + q * stride);
}

}  // namespace

const Table& KVCODEC_LEVEL::table() {
  static constexpr Table kTable = {dots, sums};
  return kTable;
}

}  // namespace kvcodec::attention_kernels
