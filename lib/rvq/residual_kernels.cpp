#include "lib/rvq/residual_kernels.hpp"

#include "lib/core/cpu.hpp"

namespace kvcodec::residual_kernels {
namespace scalar {
namespace {

float subtract(const float* row, const float* entry, size_t padded, float* out) {
  float lanes[kLanes] = {};
  for (size_t j = 0; j < padded; j += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float difference = row[j + lane] - entry[j + lane];
      out[j + lane] = difference;
      lanes[lane] += difference * difference;
    }
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

void sum_entries(const float* const* books, size_t stages, size_t padded, const uint32_t* ids, size_t count,
                 size_t width, float* out, size_t out_stride) {
  for (size_t i = 0; i < count; ++i, ids += stages) {
    float* to = out + i * out_stride;
    for (size_t j = 0; j < width; ++j) to[j] = 0;
    for (size_t s = 0; s < stages; ++s) {
      const float* entry = books[s] + size_t{ids[s]} * padded;
      for (size_t j = 0; j < width; ++j) to[j] += entry[j];
    }
  }
}

}  // namespace

const Table& table() {
  static constexpr Table kTable = {subtract, sum_entries};
  return kTable;
}

}  // namespace scalar

const Table& best() { return pick(scalar::table, avx2::table, avx512::table)(); }

}  // namespace kvcodec::residual_kernels
