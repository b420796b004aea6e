#include "lib/quant/grouped.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/test.hpp"

namespace grouped_test {

using namespace kvcodec;

namespace {

constexpr DType kScaleTypes[] = {DType::f16, DType::bf16, DType::f32};

/// The error that the float operations of (de)quantizing may add to half a step: two roundings of values of the group's size.
double rounding(double largest) { return largest * 0x1p-22; }

/// Checks an error of half a step, except for rounding, for every value.
void check_error(float x, float back, Grid grid, double largest) {
  CHECK_LE(std::abs(double{x} - double{back}), double{grid.scale} / 2 * (1 + 0x1p-20) + rounding(largest));
}

/// Matrices whose columns differ in loudness by many orders, with offsets, constants, outliers and
/// subnormals.
Matrix<float> varied(size_t rows, size_t columns, Rng& rng) {
  Matrix<float> x(rows, columns);
  for (size_t j = 0; j < columns; ++j) {
    const double loudness = std::exp2(rng.uniform(-30, 12)),
                 offset = rng.below(2) ? loudness * rng.uniform(-20, 20) : 0;
    const bool constant = rng.below(8) == 0;
    for (size_t i = 0; i < rows; ++i) {
      double value = offset + (constant ? 0 : loudness * rng.normal());
      if (rng.below(50) == 0 && !constant) value *= 30;
      x(i, j) = round_to(DType::bf16, static_cast<float>(std::clamp(value, -30000.0, 30000.0)));
    }
  }
  return x;
}

double largest_magnitude(MatrixView<const float> x) {
  double largest = 0;
  for (size_t i = 0; i < x.rows(); ++i)
    for (const float value : x.row(i)) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

}  // namespace

TEST_CASE("grouped quantization: every value comes back within half a step, in both directions") {
  Rng rng(5);
  for (const DType stored : kScaleTypes)
    for (unsigned bits = 1; bits <= 8; ++bits)
      for (const size_t rows : {1, 2, 31, 32})
        for (const size_t columns : {1, 7, 32, 33, 100}) {
          CAPTURE(name_of(stored));
          CAPTURE(bits);
          const Matrix<float> x = varied(rows, columns, rng);
          const double largest = largest_magnitude(x);
          Matrix<uint8_t> codes(rows, columns);
          Matrix<float> back(rows, columns);

          std::vector<float> scales(columns), zeros(columns);
          quantize_columns(x, bits, stored, scales, zeros, codes);
          dequantize_columns(codes, scales, zeros, back);
          for (size_t i = 0; i < rows; ++i)
            for (size_t j = 0; j < columns; ++j) {
              CHECK_LT(codes(i, j), 1u << bits);
              CHECK_EQ(scales[j], round_to(stored, scales[j]));
              CHECK_EQ(zeros[j], round_to(stored, zeros[j]));
              check_error(x(i, j), back(i, j), {scales[j], zeros[j]}, largest);
            }

          constexpr size_t kGroup = 32;
          const size_t groups = (columns + kGroup - 1) / kGroup;
          Matrix<float> row_scales(rows, groups), row_zeros(rows, groups);
          quantize_rows(x, kGroup, bits, stored, {row_scales, row_zeros, codes});
          dequantize_rows(codes, kGroup, row_scales, row_zeros, back);
          for (size_t i = 0; i < rows; ++i)
            for (size_t j = 0; j < columns; ++j) {
              CHECK_LT(codes(i, j), 1u << bits);
              check_error(x(i, j), back(i, j), {row_scales(i, j / kGroup), row_zeros(i, j / kGroup)},
                          largest);
            }
        }
}

TEST_CASE("grouped quantization: the plain rule where nothing is out of the ordinary") {
  const Grid grid = fit_grid(-1.0f, 2.0f, 2, DType::f16);
  CHECK_EQ(grid.zero, -1.0f);
  CHECK_EQ(grid.scale, 1.0f);
  const Grid fine = fit_grid(0.0f, 1.0f, 8, DType::f16);
  CHECK_EQ(fine.scale, round_to(DType::f16, 1.0f / 255));

  Matrix<float> x(1, 4);
  for (size_t j = 0; j < 4; ++j) x(0, j) = static_cast<float>(j) * 0.9f - 1;
  Matrix<float> scales(1, 1), zeros(1, 1);
  Matrix<uint8_t> codes(1, 4);
  quantize_rows(x, 4, 2, DType::f32, {scales, zeros, codes});
  for (size_t j = 0; j < 4; ++j) CHECK_EQ(codes(0, j), j);
}

TEST_CASE("grouped quantization: constants come back exactly") {
  for (const float value : {0.0f, -0.0f, 1.0f, -3.140625f, 1000.0f, -65504.0f, 0x1p-24f}) {
    const Grid grid = fit_grid(value, value, 2, DType::f16);
    CHECK_EQ(grid.scale, 0.0f);
    CHECK_EQ(grid.zero, value);
  }
  // A value that f16 does not hold: the level below and a scale that reaches it within half a step.
  const Grid tiny = fit_grid(0x1.8p-25f, 0x1.8p-25f, 1, DType::f16);
  CHECK_LE(tiny.zero, 0x1.8p-25f);
  CHECK_GE(tiny.zero + 1.5f * tiny.scale, 0x1.8p-25f);
}

TEST_CASE("grouped quantization: what the stored type cannot hold is refused, a wider one takes it") {
  CHECK_THROWS_WITH_AS(fit_grid(-70000.0f, 0.0f, 2, DType::f16), doctest::Contains("--scale-type"), Error);
  CHECK_THROWS_AS(fit_grid(-65504.0f, 65504.0f, 1, DType::f16), Error);  // scale 131008
  CHECK_NOTHROW(fit_grid(-65504.0f, 65504.0f, 2, DType::f16));
  CHECK_NOTHROW(fit_grid(-65504.0f, 65504.0f, 1, DType::bf16));
  CHECK_NOTHROW(fit_grid(-1e38f, 1e38f, 2, DType::f32));
  CHECK_THROWS_AS(fit_grid(-3e38f, 3e38f, 2, DType::f32), Error);
}

}  // namespace grouped_test
