// The scalar reference of attention_kernels.hpp.
#include <cmath>

#include "lib/attention/attention_kernels.hpp"
#include "lib/core/half.hpp"

namespace kvcodec::attention_kernels {
namespace {

float element(const float* row, size_t j) { return row[j]; }

struct F16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};
float element(const F16* row, size_t j) { return f16_to_float(row[j].bits); }
float element(const Bf16* row, size_t j) { return bf16_to_float(row[j].bits); }

float element(const CodedRow* row, size_t j) {
  const auto level = static_cast<float>((row->levels[j / 4] >> (6 - 2 * (j % 4))) & 3);
  const float magnitude = f16_to_float(row->zeros[j / 32]) + level * f16_to_float(row->scales[j / 32]);
  const bool negative = row->signs != nullptr && !((row->signs[j / 8] >> (7 - j % 8)) & 1);
  return negative ? -magnitude : magnitude;
}

size_t padded(size_t dims) { return (dims + kLanes - 1) / kLanes * kLanes; }

template <class Row>
void dots(const void* const* rows, size_t n, const float* queries, size_t count, size_t dims, float* out,
          size_t out_stride) {
  const size_t stride = padded(dims);
  for (size_t q = 0; q < count; ++q)
    for (size_t t = 0; t < n; ++t) {
      float lanes[kLanes] = {};
      for (size_t j = 0; j < stride; ++j) {
        const float value = j < dims ? element(static_cast<const Row*>(rows[t]), j) : 0;
        lanes[j % kLanes] = std::fma(value, queries[q * stride + j], lanes[j % kLanes]);
      }
      for (size_t width = kLanes / 2; width > 0; width /= 2)
        for (size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
      out[q * out_stride + t] = lanes[0];
    }
}

template <class Row>
void sums(const void* const* rows, size_t n, const float* weights, size_t weight_stride, size_t count,
          size_t dims, float* out) {
  const size_t stride = padded(dims);
  for (size_t q = 0; q < count; ++q)
    for (size_t t = 0; t < n; ++t)
      for (size_t j = 0; j < stride; ++j) {
        const float value = j < dims ? element(static_cast<const Row*>(rows[t]), j) : 0;
        out[q * stride + j] = std::fma(value, weights[q * weight_stride + t], out[q * stride + j]);
      }
}

constexpr Table kTable = {{dots<float>, dots<F16>, dots<Bf16>, dots<CodedRow>, dots<CodedRow>},
                          {sums<float>, sums<F16>, sums<Bf16>, sums<CodedRow>, sums<CodedRow>}};

}  // namespace
}  // namespace kvcodec::attention_kernels

const kvcodec::attention_kernels::Table& kvcodec::attention_kernels::scalar::table() { return kTable; }
