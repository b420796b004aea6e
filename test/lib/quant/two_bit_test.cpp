#include "lib/quant/two_bit.hpp"

#include <bit>
#include <cmath>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/quant/grouped.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace two_bit_test {

using namespace kvcodec;

namespace {

/// Half bytes of levels, around vectors and groups.
constexpr size_t kDims[] = {1, 2, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 100, 128, 129};

struct Coded {
  Matrix<uint8_t> levels;
  Matrix<uint16_t> scales, zeros;

  Coded(size_t rows, size_t dims)
      : levels(rows, two_bit_row_bytes(dims)),
        scales(rows, two_bit_groups(dims)),
        zeros(rows, two_bit_groups(dims)) {}
  TwoBitRows view() { return {levels, scales, zeros}; }
  ConstTwoBitRows view() const { return {levels, scales, zeros}; }
  bool operator==(const Coded& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return std::equal(a.data(), a.data() + a.size(), b.data(), b.data() + b.size());
    };
    return same(levels, other.levels) && same(scales, other.scales) && same(zeros, other.zeros);
  }
};

/// Rows of every loudness, with constant ones.
Matrix<float> make_rows(size_t rows, size_t dims, Rng& rng) {
  Matrix<float> x(rows, dims);
  for (size_t i = 0; i < rows; ++i) {
    const double loudness = std::exp2(rng.uniform(-20, 10)), offset = loudness * rng.uniform(-5, 5);
    const bool constant = rng.below(6) == 0;
    for (size_t j = 0; j < dims; ++j)
      x(i, j) = static_cast<float>(offset + (constant ? 0 : loudness * rng.normal()));
  }
  return x;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

}  // namespace

TEST_CASE("two-bit rows: what grouped quantization and bit packing give, at every level and thread count") {
  Rng rng(41);
  for (const size_t dims : kDims)
    for (const size_t rows : {0, 1, 3, 1100}) {
      CAPTURE(dims);
      const Matrix<float> x = make_rows(rows, dims, rng);
      const size_t groups = two_bit_groups(dims);
      Matrix<float> scales(rows, groups), zeros(rows, groups), decoded(rows, dims);
      Matrix<uint8_t> codes(rows, dims);
      quantize_rows(x, kTwoBitGroup, 2, DType::f16, {scales, zeros, codes});
      dequantize_rows(codes, kTwoBitGroup, scales, zeros, decoded);
      Coded expected(rows, dims);
      for (size_t i = 0; i < rows; ++i) {
        pack_bits(codes.row(i), 2, 0, expected.levels.row(i));
        narrow(DType::f16, scales.row(i), expected.scales.row(i));
        narrow(DType::f16, zeros.row(i), expected.zeros.row(i));
      }
      for (const SimdLevel level : test::simd_levels())
        for (const int threads : {1, 2}) {
          const test::AtLevel at(level);
          CAPTURE(name_of(level));
          set_num_threads(threads);
          Coded coded(rows, dims);
          quantize_two_bit(x, {}, coded.view());
          set_num_threads(0);
          CHECK((coded == expected));
          Matrix<float> back(rows, dims);
          dequantize_two_bit(std::as_const(expected).view(), back);
          CHECK(same_bits({back.data(), back.size()}, {decoded.data(), decoded.size()}));
        }
    }
}

TEST_CASE("two-bit rows of least squares: never more weighed error than between smallest and largest") {
  Rng rng(43);
  const auto error_of = [](const Matrix<float>& x, const Matrix<float>& weights, const Coded& coded,
                           size_t row, size_t first) {
    Matrix<float> decoded(x.rows(), x.cols());
    dequantize_two_bit(coded.view(), decoded);
    double sum = 0;
    for (size_t j = first; j < std::min(x.cols(), first + kTwoBitGroup); ++j)
      sum += double{weights(row % weights.rows(), j)} * std::pow(double{decoded(row, j)} - x(row, j), 2);
    return sum;
  };
  for (const size_t dims : kDims) {
    CAPTURE(dims);
    constexpr size_t kRows = 60;
    const Matrix<float> x = make_rows(kRows, dims, rng);
    Matrix<float> weights(3, dims);
    for (size_t i = 0; i < weights.size(); ++i)
      weights.data()[i] = static_cast<float>(std::exp2(rng.uniform(-6, 6)));
    Coded range(kRows, dims), expected(kRows, dims);
    quantize_two_bit(x, {}, range.view());
    double all = 0, of_range = 0;
    for (const SimdLevel level : test::simd_levels()) {
      const test::AtLevel at(level);
      CAPTURE(name_of(level));
      Coded coded(kRows, dims);
      quantize_two_bit(x, weights, coded.view());
      if (level == test::simd_levels().front()) expected = coded;
      CHECK((coded == expected));
    }
    for (size_t row = 0; row < kRows; ++row)
      for (size_t first = 0; first < dims; first += kTwoBitGroup) {
        // Both grids are rounded to f16, which holds offsets of five times the spread to a hundredth of it.
        double slack = 0, largest = 0, weight = 0;
        for (size_t j = first; j < std::min(dims, first + kTwoBitGroup); ++j) {
          largest = std::max(largest, std::abs(double{x(row, j)}));
          weight += weights(row % 3, j);
        }
        slack = weight * std::pow(largest * 0x1p-9 + 0x1p-22, 2);
        const double least = error_of(x, weights, expected, row, first),
                     usual = error_of(x, weights, range, row, first);
        CHECK(std::sqrt(least) <= std::sqrt(usual) + std::sqrt(slack));
        all += least / weight / (largest * largest);
        of_range += usual / weight / (largest * largest);
      }
    if (dims >= 31) CHECK(all < 0.6 * of_range);
  }
}

TEST_CASE("two-bit rows with signs: center +- alpha * magnitude, at every level") {
  Rng rng(42);
  for (const size_t dims : kDims) {
    CAPTURE(dims);
    Matrix<float> magnitudes = make_rows(5, dims, rng);
    for (size_t i = 0; i < magnitudes.size(); ++i) magnitudes.data()[i] = std::abs(magnitudes.data()[i]);
    Coded coded(5, dims);
    quantize_two_bit(magnitudes, {}, coded.view());
    Matrix<float> decoded(5, dims);
    dequantize_two_bit(std::as_const(coded).view(), decoded);
    std::vector<uint8_t> signs((dims + 7) / 8);
    for (auto& byte : signs) byte = static_cast<uint8_t>(rng.next());
    std::vector<float> alpha(dims), center(dims);
    for (size_t j = 0; j < dims; ++j)
      alpha[j] = static_cast<float>(rng.uniform(0.1, 4)), center[j] = static_cast<float>(rng.normal());
    for (size_t row = 0; row < 5; ++row) {
      std::vector<float> expected(dims);
      for (size_t j = 0; j < dims; ++j) {
        const float magnitude = alpha[j] * decoded(row, j);
        expected[j] = (signs[j / 8] >> (7 - j % 8)) & 1 ? center[j] + magnitude : center[j] - magnitude;
      }
      for (const SimdLevel level : test::simd_levels()) {
        const test::AtLevel at(level);
        CAPTURE(name_of(level));
        std::vector<float> out(dims);
        dequantize_signed_row(std::as_const(coded).view(), row, signs, alpha, center, out);
        CHECK(same_bits(out, expected));
      }
    }
  }
}

TEST_CASE("two-bit rows refuse what does not fit") {
  Matrix<float> x(2, 40);
  Coded coded(2, 40), narrow_one(2, 32), one(1, 40);
  CHECK_THROWS_AS(quantize_two_bit(x, {}, narrow_one.view()), Error);
  CHECK_THROWS_AS(quantize_two_bit(x, {}, one.view()), Error);
  CHECK_THROWS_AS(quantize_two_bit(x, Matrix<float>(1, 39), coded.view()), Error);
  CHECK_THROWS_AS(dequantize_two_bit(std::as_const(one).view(), x), Error);
  quantize_two_bit(x, {}, coded.view());
  std::vector<uint8_t> signs(5), few(4);
  std::vector<float> channels(40);
  CHECK_THROWS_AS(dequantize_signed_row(std::as_const(coded).view(), 2, signs, channels, channels, channels),
                  Error);
  CHECK_THROWS_AS(dequantize_signed_row(std::as_const(coded).view(), 1, few, channels, channels, channels),
                  Error);
  x(1, 7) = 1e30f;
  CHECK_THROWS_WITH_AS(quantize_two_bit(x, {}, coded.view()), doctest::Contains("beyond the range"), Error);
}

}  // namespace two_bit_test
