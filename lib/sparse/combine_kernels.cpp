#include "lib/sparse/combine_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/core/cpu.hpp"
#include "lib/core/half.hpp"

namespace kvcodec::combine_kernels {
namespace scalar {
namespace {

/// Where an atom's line has a channel.
size_t byte_of(size_t channel) { return channel / 4 % 4 * 16 + channel / 16 * 4 + channel % 4; }

void prepare(const uint32_t* ids, const float* coefficients, size_t pairs, const float* scales,
             uint32_t* lines, uint8_t* weights, Code* code) {
  constexpr auto kMost = static_cast<float>(kLargestWeight);
  float largest = 0;
  for (size_t k = 0; k < pairs; ++k) largest = std::max(largest, std::abs(coefficients[k] * scales[ids[k]]));
  const bool any = largest >= kLeastWeight;
  const float factor = any ? kMost / largest : 0;
  uint32_t sum = 0;
  for (size_t k = 0; k < code->room; ++k) {
    const float weight = k < pairs ? coefficients[k] * scales[ids[k]] * factor : 0;
    const auto q = static_cast<int16_t>(std::nearbyint(weight));
    std::memcpy(weights + 2 * k, &q, sizeof q);
    lines[k] = k < pairs ? ids[k] * uint32_t{kSliceChannels} : 0;
    sum += static_cast<uint32_t>(q);
  }
  code->unit = any ? largest / kMost : 0;
  code->correction = static_cast<int32_t>(sum * static_cast<uint32_t>(-kLevelOffset));
}

void combine(const uint8_t* slice, const Code* codes, size_t signals, size_t width, const Finish& finish,
             void* out, size_t stride) {
  for (size_t i = 0; i < signals; ++i) {
    const Code& code = codes[i];
    for (size_t c = 0; c < width; ++c) {
      auto sum = static_cast<uint32_t>(code.correction);  // unsigned: wraps around by definition
      for (size_t k = 0; k < size_t{code.quads} * 4; ++k) {
        int16_t weight;
        std::memcpy(&weight, code.weights + 2 * k, sizeof weight);
        sum += static_cast<uint32_t>(weight * int{slice[code.lines[k] + byte_of(c)]});
      }
      float value = static_cast<float>(static_cast<int32_t>(sum)) * code.unit;
      if (finish.gain) value *= code.gain;
      if (finish.scale) value *= finish.scale[c];
      if (finish.mean) value += finish.mean[c];
      if (finish.type == Output::f32)
        static_cast<float*>(out)[i * stride + c] = value;
      else
        static_cast<uint16_t*>(out)[i * stride + c] =
            finish.type == Output::bf16 ? bf16_from_float(value) : f16_from_float(value);
    }
  }
}

}  // namespace

const Kernels& table() {
  static constexpr Kernels kTable = {.prepare = prepare, .combine = combine};
  return kTable;
}

}  // namespace scalar

const Kernels& best() { return pick(scalar::table, avx2::table)(); }

}  // namespace kvcodec::combine_kernels
