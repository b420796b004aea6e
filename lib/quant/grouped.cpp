#include "lib/quant/grouped.hpp"

#include <algorithm>
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

/// The next smaller value of the type.
float next_below(DType type, float value) {
  if (type == DType::f32) return std::nextafter(value, -std::numeric_limits<float>::infinity());
  if (value <= 0) return -next_above(type, -value);
  return from_bits(type, static_cast<uint16_t>(bits_of(type, value) - 1));
}

unsigned highest_level(unsigned bits) { return (1u << bits) - 1; }

/// Quantizes n values on grids of their own (one scale and zero per value).
void quantize_each(const float* x, const float* scales, const float* zeros, unsigned bits, uint8_t* codes,
                   size_t n) {
  const auto highest = static_cast<float>(highest_level(bits));
  for (size_t i = 0; i < n; ++i) {
    const float divisor =
        scales[i] > 0 ? scales[i] : 1.0f;  // without spread x - zero is 0, and so is the code
    const float level = (x[i] - zeros[i]) / divisor + 0.5f;
    codes[i] = static_cast<uint8_t>(static_cast<int>(level < highest ? level : highest));
  }
}

/// Quantizes n values on one grid.
void quantize_together(const float* x, Grid grid, unsigned bits, uint8_t* codes, size_t n) {
  const auto highest = static_cast<float>(highest_level(bits));
  const float divisor = grid.scale > 0 ? grid.scale : 1.0f;
  for (size_t i = 0; i < n; ++i) {
    const float level = (x[i] - grid.zero) / divisor + 0.5f;
    codes[i] = static_cast<uint8_t>(static_cast<int>(level < highest ? level : highest));
  }
}

/// Smallest and largest of at least one value.
std::pair<float, float> range_of(std::span<const float> values) {
  constexpr size_t kLanes = 8;  // independent minima, which the compiler keeps in vectors
  float low[kLanes], high[kLanes];
  std::fill_n(low, kLanes, values[0]);
  std::fill_n(high, kLanes, values[0]);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      low[lane] = value < low[lane] ? value : low[lane];
      high[lane] = value > high[lane] ? value : high[lane];
    }
  for (; i < values.size(); ++i) {
    low[0] = std::min(low[0], values[i]);
    high[0] = std::max(high[0], values[i]);
  }
  return {*std::min_element(low, low + kLanes), *std::max_element(high, high + kLanes)};
}

}  // namespace

Grid fit_grid(float low, float high, unsigned bits, DType stored) {
  const auto refuse = [&]() {
    return bad_input(
        "values from {} to {} need a scale or zero point beyond the range of {}; a wider --scale-type (f16 < "
        "bf16 < f32) or more "
        "--bits hold them",
        low, high, name_of(stored));
  };
  const auto levels = static_cast<float>(highest_level(bits));
  Grid grid;
  grid.zero = round_to(stored, low);
  if (grid.zero > low) grid.zero = next_below(stored, grid.zero);
  const float spread = high - grid.zero;
  if (!std::isfinite(grid.zero) || !std::isfinite(spread)) throw refuse();
  grid.scale = round_to(stored, spread / levels);
  // Rounded down far enough (a coarse or subnormal scale), the highest level would lie more than half a step
  // below `high`.
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
  for (size_t i = 0; i < x.rows(); ++i)
    quantize_each(x.row(i).data(), scales.data(), zeros.data(), bits, codes.row(i).data(), columns);
}

void quantize_rows(MatrixView<const float> x, size_t group, unsigned bits, DType stored,
                   MatrixView<float> scales, MatrixView<float> zeros, MatrixView<uint8_t> codes) {
  for (size_t i = 0; i < x.rows(); ++i)
    for (size_t first = 0, g = 0; first < x.cols(); first += group, ++g) {
      const std::span<const float> values = x.row(i).subspan(first, std::min(group, x.cols() - first));
      const auto [low, high] = range_of(values);
      const Grid grid = fit_grid(low, high, bits, stored);
      scales(i, g) = grid.scale;
      zeros(i, g) = grid.zero;
      quantize_together(values.data(), grid, bits, codes.row(i).data() + first, values.size());
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

}  // namespace kvcodec
