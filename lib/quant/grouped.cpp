#include "lib/quant/grouped.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec {
namespace {

uint16_t bits_of(DType type, float value) {
  return type == DType::f16 ? f16_from_float(value) : bf16_from_float(value);
}

float from_bits(DType type, uint16_t bits) {
  return type == DType::f16 ? f16_to_float(bits) : bf16_to_float(bits);
}

/// The next larger value of the type; value >= 0 and of the type.
float next_above(DType type, float value) {
  if (type == DType::f32) return std::nextafter(value, std::numeric_limits<float>::infinity());
  return from_bits(type, static_cast<uint16_t>(bits_of(type, value) + 1));
}

float next_below(DType type, float value) {
  if (type == DType::f32) return std::nextafter(value, -std::numeric_limits<float>::infinity());
  if (value <= 0) return -next_above(type, -value);
  return from_bits(type, static_cast<uint16_t>(bits_of(type, value) - 1));
}

unsigned highest_level(unsigned bits) { return (1u << bits) - 1; }

/// The level nearest to x; divisor: the grid's scale, or 1 where that is 0: without spread x - zero is 0, and so is the level.
uint8_t level_of(float x, float zero, float divisor, float highest) {
  const float level = (x - zero) / divisor + 0.5f;
  return static_cast<uint8_t>(static_cast<int>(level < highest ? level : highest));
}

/// Smallest and largest of at least one value; eight candidates for each, which the compiler keeps in vectors.
std::pair<float, float> range_of(std::span<const float> values) {
  std::array<float, 8> low, high;
  low.fill(values[0]);
  high.fill(values[0]);
  const auto take = [&](size_t lane, float value) {
    low[lane] = value < low[lane] ? value : low[lane];
    high[lane] = value > high[lane] ? value : high[lane];
  };
  size_t i = 0;
  for (; i + low.size() <= values.size(); i += low.size())
    for (size_t lane = 0; lane < low.size(); ++lane) take(lane, values[i + lane]);
  for (; i < values.size(); ++i) take(0, values[i]);
  return {std::ranges::min(low), std::ranges::max(high)};
}

float divisor_of(float scale) { return scale > 0 ? scale : 1.0f; }

int top_level(unsigned bits) { return 1 << (bits - 1); }

/// x to the nearest integer, ties to even, for |x| < 2^22: the sum has no digits behind the point.
float to_integer(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

}  // namespace

Grid fit_grid(float low, float high, unsigned bits, DType stored) {
  const auto refuse = [&]() {
    return bad_input(
        "values from {} to {} need a scale or zero point beyond the range of {}; a wider --scale-type (f16 < bf16 < f32) or more --bits "
        "hold them",
        low, high, name_of(stored));
  };
  const auto levels = static_cast<float>(highest_level(bits));
  Grid grid;
  grid.zero = round_to(stored, low);
  if (grid.zero > low) grid.zero = next_below(stored, grid.zero);
  const float spread = high - grid.zero;
  if (!std::isfinite(grid.zero) || !std::isfinite(spread)) throw refuse();
  grid.scale = round_to(stored, spread / levels);
  // Rounded down far enough (a coarse or subnormal scale), the highest level would lie more than half a step below `high`.
  if (double{grid.zero} + (double{levels} + 0.5) * double{grid.scale} < double{high})
    grid.scale = next_above(stored, grid.scale);
  if (!std::isfinite(grid.scale)) throw refuse();
  return grid;
}

void quantize_columns(MatrixView<const float> x, unsigned bits, DType stored, std::span<float> scales,
                      std::span<float> zeros, MatrixView<uint8_t> codes) {
  if (x.rows() == 0) return;
  const size_t columns = x.cols();
  std::vector<float> low(x.row(0).begin(), x.row(0).end()), high = low;
  for (size_t i = 1; i < x.rows(); ++i) {
    const float* row = x.row(i).data();
    for (size_t j = 0; j < columns; ++j) {
      low[j] = row[j] < low[j] ? row[j] : low[j];
      high[j] = row[j] > high[j] ? row[j] : high[j];
    }
  }
  for (size_t j = 0; j < columns; ++j) {
    const Grid grid = fit_grid(low[j], high[j], bits, stored);
    scales[j] = grid.scale;
    zeros[j] = grid.zero;
  }
  const auto highest = static_cast<float>(highest_level(bits));
  for (size_t i = 0; i < x.rows(); ++i) {
    const float* row = x.row(i).data();
    uint8_t* out = codes.row(i).data();
    for (size_t j = 0; j < columns; ++j) out[j] = level_of(row[j], zeros[j], divisor_of(scales[j]), highest);
  }
}

void quantize_rows(MatrixView<const float> x, size_t group, unsigned bits, DType stored,
                   const GroupedRows& out) {
  const auto highest = static_cast<float>(highest_level(bits));
  for (size_t i = 0; i < x.rows(); ++i)
    for (size_t first = 0, g = 0; first < x.cols(); first += group, ++g) {
      const std::span<const float> values = x.row(i).subspan(first, std::min(group, x.cols() - first));
      const auto [low, high] = range_of(values);
      const Grid grid = fit_grid(low, high, bits, stored);
      out.scales(i, g) = grid.scale;
      out.zeros(i, g) = grid.zero;
      uint8_t* codes = out.codes.row(i).data() + first;
      for (size_t c = 0; c < values.size(); ++c)
        codes[c] = level_of(values[c], grid.zero, divisor_of(grid.scale), highest);
    }
}

void dequantize_columns(MatrixView<const uint8_t> codes, std::span<const float> scales,
                        std::span<const float> zeros, MatrixView<float> out) {
  const float *scale = scales.data(), *zero = zeros.data();
  for (size_t i = 0; i < codes.rows(); ++i) {
    const uint8_t* levels = codes.row(i).data();
    float* values = out.row(i).data();
    for (size_t j = 0; j < codes.cols(); ++j) values[j] = zero[j] + static_cast<float>(levels[j]) * scale[j];
  }
}

void dequantize_rows(MatrixView<const uint8_t> codes, size_t group, MatrixView<const float> scales,
                     MatrixView<const float> zeros, MatrixView<float> out) {
  for (size_t i = 0; i < codes.rows(); ++i)
    for (size_t first = 0, g = 0; first < codes.cols(); first += group, ++g) {
      const float scale = scales(i, g), zero = zeros(i, g);
      const size_t end = std::min(first + group, codes.cols());
      const uint8_t* levels = codes.row(i).data();
      float* values = out.row(i).data();
      for (size_t j = first; j < end; ++j) values[j] = zero + static_cast<float>(levels[j]) * scale;
    }
}

float fit_symmetric(std::span<const float> group, unsigned bits, DType stored) {
  // Magnitudes rise with their bits, whose maximum is found in vectors.
  int32_t most = 0;
  for (const float value : group) most = std::max(most, std::bit_cast<int32_t>(value) & 0x7fffffff);
  if (!std::isfinite(std::bit_cast<float>(most)))
    throw bad_input(
        "a group holds {}; values, also rotated ones, must be finite, and lossless keeps larger ones",
        *std::ranges::find_if_not(group, [](float value) { return std::isfinite(value); }));
  float extreme = 0;  // the first value of that magnitude
  for (size_t i = 0; std::bit_cast<int32_t>(std::abs(extreme)) < most; ++i)
    if ((std::bit_cast<int32_t>(group[i]) & 0x7fffffff) == most) extreme = group[i];
  const float wanted = std::abs(extreme) / static_cast<float>(top_level(bits));
  float scale = round_to(stored, wanted);
  if (scale < wanted) scale = next_above(stored, scale);
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
    for (size_t first = 0, g = 0; first < codes.cols(); first += group, ++g) {
      const float scale = scales(i, g);
      const uint8_t* levels = codes.row(i).data();
      float* values = out.row(i).data();
      for (size_t c = first; c < std::min(first + group, codes.cols()); ++c)
        values[c] = static_cast<float>(levels[c] - top) * scale;
    }
}

}  // namespace kvcodec
