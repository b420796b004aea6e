// The loops of residual_kernels.hpp in vectors (see lib/core/cpu.hpp).
#pragma once

#include "lib/core/vectors.hpp"
#include "lib/rvq/residual_kernels.hpp"

namespace kvcodec::residual_kernels {
namespace {

using namespace vectors;

float subtract(const float* row, const float* entry, size_t padded, float* out) {
  FloatLanes sum = {};
  for (size_t j = 0; j < padded; j += kLanes)
    for (size_t part = 0; part < FloatLanes::kParts; ++part) {
      const size_t at = j + part * kWidth;
      const Floats difference = load(row + at) - load(entry + at);
      store(difference, out + at);
      sum.parts[part] += difference * difference;
    }
  return sum_of(sum);
}

/// kVectors of a row from float `first` on, all in registers; the last may be cut by the width.
template <size_t kVectors>
void sum_part(const float* const* books, size_t stages, size_t padded, const uint32_t* ids, size_t first,
              size_t width, float* out) {
  Floats sums[kVectors] = {};
  for (size_t s = 0; s < stages; ++s) {
    const float* entry = books[s] + (size_t)ids[s] * padded + first;
    for (size_t v = 0; v < kVectors; ++v) sums[v] += load(entry + v * kWidth);
  }
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t at = first + v * kWidth;
    if (at + kWidth <= width)
      store(sums[v], out + at);
    else
      store_first(sums[v], out + at, width - at);
  }
}

/// Rows ahead whose entries are asked for: their addresses are random, and large books are no cache's. More
/// of them cost more than they gain, even where books are in memory; with vectors of 256 bits any do.
constexpr size_t kAhead = KVCODEC_BY_WIDTH(0, 1);

void sum_entries(const float* const* books, size_t stages, size_t padded, const uint32_t* ids, size_t count,
                 size_t width, float* out, size_t out_stride) {
  const size_t vectors = (width + kWidth - 1) / kWidth;
  for (size_t i = 0; i < count; ++i, ids += stages, out += out_stride) {
    if (kAhead > 0 && i + kAhead < count)
      for (size_t s = 0; s < stages; ++s) {
        const float* entry = books[s] + (size_t)ids[kAhead * stages + s] * padded;
        for (size_t j = 0; j < padded; j += kLanes) look_ahead(entry + j);
      }
    size_t v = 0;
    for (; v + 8 <= vectors; v += 8) sum_part<8>(books, stages, padded, ids, v * kWidth, width, out);
    if (v + 4 <= vectors) sum_part<4>(books, stages, padded, ids, v * kWidth, width, out), v += 4;
    for (; v < vectors; ++v) sum_part<1>(books, stages, padded, ids, v * kWidth, width, out);
  }
}

constexpr Table kTable = {subtract, sum_entries};

}  // namespace
}  // namespace kvcodec::residual_kernels
