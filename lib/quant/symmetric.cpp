#include "lib/quant/symmetric.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec {
namespace {

/// The smallest value of the type that is not smaller than `magnitude` >= 0; infinity beyond its range.
float round_up(DType type, float magnitude) {
  const float nearest = round_to(type, magnitude);
  if (nearest >= magnitude) return nearest;
  if (type == DType::f16) return f16_to_float(static_cast<uint16_t>(f16_from_float(nearest) + 1));
  return bf16_to_float(static_cast<uint16_t>(bf16_from_float(nearest) + 1));
}

int top_level(unsigned bits) { return 1 << (bits - 1); }

/// x to the nearest integer, ties to even, for |x| < 2^22: the sum has no digits behind the point.
float to_integer(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

}  // namespace

float fit_symmetric(std::span<const float> group, unsigned bits, DType stored) {
  float extreme = 0;
  for (const float value : group) {
    if (!std::isfinite(value))
      throw bad_input(
          "a group holds {}; values, also rotated ones, must be finite, and lossless keeps larger ones",
          value);
    if (std::abs(value) > std::abs(extreme)) extreme = value;
  }
  const float scale = round_up(stored, std::abs(extreme) / static_cast<float>(top_level(bits)));
  if (!std::isfinite(scale))
    throw bad_input("a group of values up to {} needs a scale beyond the range of {}", extreme,
                    name_of(stored));
  return extreme > 0 ? -scale : scale;
}

void quantize_symmetric(MatrixView<const float> x, size_t group, unsigned bits, DType stored,
                        MatrixView<float> scales, MatrixView<uint8_t> codes) {
  const auto top = static_cast<float>(top_level(bits));
  for (size_t i = 0; i < x.rows(); ++i)
    for (size_t first = 0, g = 0; first < x.cols(); first += group, ++g) {
      const auto values = x.row(i).subspan(first, std::min(group, x.cols() - first));
      const float scale = scales(i, g) = fit_symmetric(values, bits, stored);
      uint8_t* out = codes.row(i).data() + first;
      for (size_t c = 0; c < values.size(); ++c) {
        const float level = scale == 0 ? 0 : to_integer(values[c] / scale);
        out[c] = static_cast<uint8_t>(std::clamp(level, -top, top - 1) + top);
      }
    }
}

void dequantize_symmetric(MatrixView<const uint8_t> codes, size_t group, unsigned bits,
                          MatrixView<const float> scales, MatrixView<float> out) {
  const int top = top_level(bits);
  for (size_t i = 0; i < codes.rows(); ++i)
    for (size_t c = 0; c < codes.cols(); ++c)
      out(i, c) = static_cast<float>(codes(i, c) - top) * scales(i, c / group);
}

}  // namespace kvcodec
