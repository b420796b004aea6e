#include "lib/quant/error_bounded.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/mismatch.hpp"
#include "test/test.hpp"

namespace error_bounded_test {

using namespace kvcodec;

namespace {

constexpr UnitShape kShapes[] = {UnitShape::column, UnitShape::row, UnitShape::block};
constexpr DType kStorages[] = {DType::f16, DType::bf16};

const char* name_of_shape(UnitShape unit) {
  return unit == UnitShape::column ? "column" : unit == UnitShape::row ? "row" : "block";
}

size_t unit_of(UnitShape unit, size_t i, size_t j) {
  return unit == UnitShape::column ? j : unit == UnitShape::row ? i : 0;
}

float largest_of(DType storage) { return storage == DType::f16 ? 65504.0f : bf16_to_float(0x7f7f); }

/// The value in the form of `storage`, never infinite.
float stored(DType storage, double value) {
  const double largest = largest_of(storage);
  return round_to(storage, static_cast<float>(std::clamp(value, -largest, largest)));
}

/// Any finite 16-bit pattern.
float any_pattern(DType storage, Rng& rng) {
  while (true) {
    const auto bits = static_cast<uint16_t>(rng.below(65536));
    const float value = storage == DType::f16 ? f16_to_float(bits) : bf16_to_float(bits);
    if (std::isfinite(value)) return value;
  }
}

/// Columns of many kinds: offset, constant, zero, tiny, with outliers, of the type's whole range.
Matrix<float> varied(size_t rows, size_t columns, DType storage, Rng& rng) {
  Matrix<float> x(rows, columns);
  const double base = std::exp2(rng.uniform(-20, 12));
  for (size_t j = 0; j < columns; ++j) {
    const size_t kind = rng.below(10);
    const double loudness = base * std::exp2(rng.uniform(-4, 4)),
                 offset = rng.below(2) ? loudness * rng.uniform(-40, 40) : 0;
    for (size_t i = 0; i < rows; ++i) {
      double value = offset + loudness * rng.normal();
      if (kind == 0) value = offset;
      if (kind == 1) value = 0;
      if (kind == 2) value = static_cast<double>(rng.below(9)) * 0x1p-24;               // f16 subnormals
      if (kind == 3 && rng.below(16) == 0) value *= 1000;                               // outliers
      if (kind == 4) value = std::ldexp(static_cast<double>(rng.below(17)) - 8, -133);  // bf16 subnormals
      if (kind == 5) value = rng.below(2) ? FLT_MAX : -FLT_MAX * rng.uniform();         // the far end
      x(i, j) = kind == 6 && rng.below(4) == 0 ? any_pattern(storage, rng) : stored(storage, value);
    }
  }
  return x;
}

Matrix<float> gaussian(size_t rows, size_t columns, DType storage, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> x(rows, columns);
  for (size_t i = 0; i < x.size(); ++i) x.data()[i] = stored(storage, rng.normal());
  return x;
}

/// The bounds of all units, in double by the definition.
std::vector<double> bounds_of(MatrixView<const float> x, UnitShape unit, const ErrorBound& bound) {
  const size_t units = unit_count(unit, x.rows(), x.cols());
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> low(units, kInfinity), high(units, -kInfinity), result(units, kInfinity);
  for (size_t i = 0; i < x.rows(); ++i)
    for (size_t j = 0; j < x.cols(); ++j) {
      const size_t u = unit_of(unit, i, j);
      low[u] = std::min(low[u], double{x(i, j)});
      high[u] = std::max(high[u], double{x(i, j)});
    }
  for (size_t u = 0; u < units; ++u) {
    if (bound.range > 0) result[u] = std::min(result[u], bound.range * (high[u] - low[u]));
    if (bound.absolute > 0) result[u] = std::min(result[u], bound.absolute);
    if (bound.magnitude > 0)
      result[u] = std::min(result[u], bound.magnitude * std::max(std::abs(low[u]), std::abs(high[u])));
  }
  return result;
}

struct Quantized {
  std::vector<float> steps;
  std::vector<int16_t> origins;
  Matrix<uint8_t> symbols;

  bool operator==(const Quantized& other) const {
    return steps == other.steps && origins == other.origins &&
           std::equal(symbols.data(), symbols.data() + symbols.size(), other.symbols.data());
  }
};

Quantized quantize(MatrixView<const float> x, UnitShape unit, const ErrorBound& bound, DType storage,
                   bool with_origins) {
  Quantized result{std::vector<float>(unit_count(unit, x.rows(), x.cols())),
                   std::vector<int16_t>(with_origins ? x.cols() : 0), Matrix<uint8_t>(x.rows(), x.cols())};
  quantize_bounded(x, unit, bound, storage, {result.steps, result.origins, result.symbols});
  return result;
}

size_t count_exact(const Quantized& quantized) {
  return static_cast<size_t>(std::count(quantized.symbols.data(),
                                        quantized.symbols.data() + quantized.symbols.size(), kExactSymbol));
}

/// Checks a result against the promise; returns a report of the values that break it, empty if none does.
std::string broken_promises(MatrixView<const float> x, UnitShape unit, DType storage,
                            const Quantized& quantized, const std::vector<double>& bounds) {
  Matrix<float> back(x.rows(), x.cols());
  dequantize_bounded(quantized.symbols, unit, quantized.steps, quantized.origins, back);
  test::Mismatch broken;
  for (size_t i = 0; i < x.rows(); ++i)
    for (size_t j = 0; j < x.cols(); ++j) {
      const size_t u = unit_of(unit, i, j);
      const int symbol = quantized.symbols(i, j);
      const int level = symbol - kZeroSymbol + (quantized.origins.empty() ? 0 : quantized.origins[j]);
      broken.compare(back(i, j), static_cast<float>(level) * quantized.steps[u], i, j);  // the definition
      broken.require(std::isfinite(back(i, j)), i, j);
      if (symbol == kExactSymbol) continue;
      const double rounded = round_to(storage, back(i, j)), value = x(i, j);
      broken.require(std::abs(double{back(i, j)} - value) <= bounds[u], i, j);
      broken.require(std::abs(rounded - value) <= bounds[u], i, j);
    }
  return broken.report();
}

bool constant_unit(MatrixView<const float> x, UnitShape unit, size_t u) {
  if (unit == UnitShape::column) {
    for (size_t i = 0; i < x.rows(); ++i)
      if (x(i, u) != x(0, u)) return false;
    return true;
  }
  const MatrixView<const float> part = unit == UnitShape::row ? x.rows(u, 1) : x;
  for (size_t i = 0; i < part.rows(); ++i)
    for (const float value : part.row(i))
      if (value != part(0, 0)) return false;
  return true;
}

void check_steps(MatrixView<const float> x, UnitShape unit, const Quantized& quantized,
                 const std::vector<double>& bounds) {
  for (size_t u = 0; u < quantized.steps.size(); ++u) {
    const float step = quantized.steps[u];
    CHECK(std::isfinite(step));
    CHECK_GE(step, 0.0f);
    CHECK_EQ(step, round_to(DType::f16, step));
    if (!(double{step} <= 2 * bounds[u])) CHECK(constant_unit(x, unit, u));
  }
}

}  // namespace

TEST_CASE("error-bounded quantization: no value leaves its bound, whatever the matrix") {
  const std::vector<ErrorBound> bounds = {
      {.range = 0.002},     {.range = 0.01},
      {.range = 0.075},     {.range = 0.15},
      {.range = 0.5},       {.range = 1},
      {.absolute = 0x1p-9}, {.absolute = 0.03},
      {.absolute = 1e-7},   {.absolute = 1e6},
      {.magnitude = 0.002}, {.magnitude = 0.05},
      {.magnitude = 1},     {.range = 0.1, .absolute = 0.05, .magnitude = 0.02},
  };
  constexpr uint64_t kSeed = 31;
  CAPTURE(kSeed);
  Rng rng(kSeed);
  for (const DType storage : kStorages)
    for (const size_t rows : {0, 1, 2, 31, 64, 129})
      for (const size_t columns : {0, 1, 7, 16, 33, 64, 130}) {
        const Matrix<float> x = varied(rows, columns, storage, rng);
        for (const ErrorBound& bound : bounds)
          for (const UnitShape unit : kShapes)
            for (const bool with_origins : {false, true}) {
              if (with_origins && unit == UnitShape::row) continue;
              const Quantized quantized = quantize(x, unit, bound, storage, with_origins);
              const std::vector<double> limits = bounds_of(x, unit, bound);
              INFO(name_of(storage), " ", rows, " x ", columns, " ", name_of_shape(unit), " range ",
                   bound.range, " absolute ", bound.absolute, " magnitude ", bound.magnitude);
              CHECK_EQ(broken_promises(x, unit, storage, quantized, limits), "");
              if (rows > 0 && columns > 0) check_steps(x, unit, quantized, limits);
            }
      }
}

TEST_CASE("error-bounded quantization: every SIMD level gives the same") {
  constexpr uint64_t kSeed = 32;
  CAPTURE(kSeed);
  Rng rng(kSeed);
  for (const DType storage : kStorages)
    for (const size_t rows : {1, 2, 63, 64, 129, 300})
      for (const size_t columns : {1, 15, 16, 17, 47, 64, 129, 300}) {
        const Matrix<float> x = varied(rows, columns, storage, rng);
        for (const double range : {0.01, 0.1, 0.4})
          for (const UnitShape unit : kShapes) {
            Quantized reference;
            Matrix<float> reference_back(rows, columns);
            for (const SimdLevel level : test::simd_levels()) {
              const test::AtLevel at(level);
              const Quantized quantized =
                  quantize(x, unit, {.range = range}, storage, unit != UnitShape::row);
              Matrix<float> back(rows, columns);
              dequantize_bounded(quantized.symbols, unit, quantized.steps, quantized.origins, back);
              if (level == SimdLevel::scalar) {
                reference = quantized;
                reference_back = back;
              }
              INFO(name_of(level), " ", name_of(storage), " ", rows, " x ", columns, " ",
                   name_of_shape(unit));
              CHECK(quantized == reference);
              CHECK(std::equal(back.data(), back.data() + back.size(), reference_back.data()));
            }
          }
      }
}

TEST_CASE("error-bounded quantization: all 16-bit values, against the definition in double") {
  // Every pattern of a type once: symbols must be those of the nearest level wherever that level keeps the promise
  // clearly.
  for (const DType storage : kStorages)
    for (const float step : {0x1p-24f, 0x1.6p-18f, 0.03125f, round_to(DType::f16, 0.3f), 1000.0f}) {
      Matrix<float> x(256, 256);
      for (size_t i = 0; i < x.size(); ++i) {
        const auto bits = static_cast<uint16_t>(i);
        const float value = storage == DType::f16 ? f16_to_float(bits) : bf16_to_float(bits);
        x.data()[i] = std::isfinite(value) ? value : 0;
      }
      const Quantized quantized = quantize(x, UnitShape::block, {.absolute = step / 2}, storage, false);
      const float used = quantized.steps[0];  // not larger
      CHECK_EQ(broken_promises(x, UnitShape::block, storage, quantized, {step / 2}), "");
      test::Mismatch missed;
      for (size_t i = 0; i < x.size(); ++i) {
        const double ratio = double{x.data()[i]} / double{used}, level = std::nearbyint(ratio);
        if (std::abs(level) > 127 || std::abs(ratio - level) > 0.499) continue;
        const double rounded = round_to(storage, static_cast<float>(level) * used);
        if (std::abs(rounded - double{x.data()[i]}) > step / 2) continue;
        missed.compare(quantized.symbols.data()[i], level + kZeroSymbol, i);
      }
      CAPTURE(name_of(storage));
      CAPTURE(step);
      CHECK_EQ(missed.report(), "");
    }
}

TEST_CASE("error-bounded quantization: constant units come back exactly and have one symbol") {
  for (const DType storage : kStorages)
    for (const double constant : {1.0, -3.140625, 1000.0, -0.0078125, 65280.0})
      for (const UnitShape unit : kShapes) {
        const float value = stored(storage, constant);
        Matrix<float> x(5, 19), back(5, 19);
        std::fill(x.data(), x.data() + x.size(), value);
        for (const ErrorBound& bound : {ErrorBound{.range = 0.1}, ErrorBound{.magnitude = 0.01}}) {
          const bool with_origins = unit != UnitShape::row;
          const Quantized quantized = quantize(x, unit, bound, storage, with_origins);
          const int expected = with_origins ? kZeroSymbol : kZeroSymbol + (value > 0 ? 1 : -1);
          dequantize_bounded(quantized.symbols, unit, quantized.steps, quantized.origins, back);
          for (size_t i = 0; i < x.size(); ++i) {
            CHECK_EQ(quantized.symbols.data()[i], expected);
            CHECK_EQ(back.data()[i], value);
          }
        }
      }
  // A bound that 0 keeps too: no need for another symbol.
  Matrix<float> x(1, 4);
  std::fill(x.data(), x.data() + 4, 0.25f);
  CHECK_EQ(quantize(x, UnitShape::row, {.absolute = 0.25}, DType::f16, false).symbols(0, 3), kZeroSymbol);
}

TEST_CASE("error-bounded quantization: zeros, and steps that f16 cannot hold") {
  Matrix<float> x(3, 4);
  for (const UnitShape unit : kShapes) {
    const Quantized zeros = quantize(x, unit, {.range = 0.1}, DType::bf16, unit != UnitShape::row);
    CHECK_EQ(*std::max_element(zeros.steps.begin(), zeros.steps.end()), 0.0f);
    CHECK_EQ(std::count(zeros.symbols.data(), zeros.symbols.data() + 12, kZeroSymbol), 12);
  }
  // Twice the bound is below 2^-24: values within the bound of 0 become 0, the rest is exact.
  x(0, 0) = 0x1p-20f;
  x(1, 1) = -0x1p-30f;
  const Quantized tiny = quantize(x, UnitShape::block, {.absolute = 0x1p-28}, DType::bf16, true);
  CHECK_EQ(tiny.steps[0], 0.0f);
  CHECK_EQ(tiny.symbols(0, 0), kExactSymbol);
  CHECK_EQ(tiny.symbols(1, 1), kZeroSymbol);
  CHECK_EQ(count_exact(tiny), 1);
  for (const int16_t origin : tiny.origins) CHECK_EQ(origin, 0);
}

TEST_CASE("error-bounded quantization: origins let channels far from 0 have symbols") {
  constexpr uint64_t kSeed = 33;
  Rng rng(kSeed);
  Matrix<float> x(64, 16);
  for (size_t i = 0; i < 64; ++i)
    for (size_t j = 0; j < 16; ++j)
      x(i, j) = stored(DType::f16, 10.0 * (static_cast<double>(j) - 8) + 0.1 * rng.normal());
  const Quantized without = quantize(x, UnitShape::column, {.range = 0.02}, DType::f16, false),
                  with = quantize(x, UnitShape::column, {.range = 0.02}, DType::f16, true);
  CHECK_GT(count_exact(without), x.size() / 2);
  CHECK_EQ(count_exact(with), 0);
  // Skewed so far that symbols around the mean's level would not reach the largest value.
  Matrix<float> skewed(200, 1);
  skewed(17, 0) = 200;
  const Quantized reached = quantize(skewed, UnitShape::column, {.absolute = 0.5}, DType::f16, true);
  CHECK_EQ(reached.steps[0], 1.0f);
  CHECK_EQ(count_exact(reached), 0);
  CHECK_EQ(reached.origins[0], 73);  // the nearest to the mean's level, 1, that reaches level 200
}

TEST_CASE("error-bounded quantization: few values of Gaussian units are stored exactly") {
  // The size of a block of keys or values. Without the choice of steps it would be up to 1 in 100 at the
  // finest of these bounds.
  for (const DType storage : kStorages)
    for (const double relative : {0.02, 0.05, 0.1, 0.15, 0.25, 0.4})
      for (const UnitShape unit : kShapes) {
        const Matrix<float> x = gaussian(64, 64, storage, 34);
        const ErrorBound bound{.range = relative / 2};
        const Quantized quantized = quantize(x, unit, bound, storage, unit != UnitShape::row);
        const std::vector<double> limits = bounds_of(x, unit, bound);
        double bits = 18 * static_cast<double>(count_exact(quantized));
        const auto per_unit = static_cast<double>(x.size() / quantized.steps.size());
        for (size_t u = 0; u < limits.size(); ++u)
          bits += per_unit * std::log2(2 * limits[u] / double{quantized.steps[u]});
        CAPTURE(name_of(storage));
        CAPTURE(relative);
        CAPTURE(name_of_shape(unit));
        CHECK_LE(static_cast<double>(count_exact(quantized)) / static_cast<double>(x.size()), 1e-3);
        // In bf16 at 0.02 a step is 5 to 10 spacings of the largest values.
        CHECK_LE(bits / static_cast<double>(x.size()), storage == DType::f16 ? 0.005
                                                       : relative < 0.05     ? 0.06
                                                                             : 0.02);
      }
}

TEST_CASE("error-bounded quantization: steps of all heads together, and views with a stride") {
  constexpr size_t kRows = 37, kHeads = 3, kDim = 24;
  const Matrix<float> x = gaussian(kRows, kHeads * kDim, DType::bf16, 35);
  const ErrorBound bound{.range = 0.05};
  const Quantized whole = quantize(x, UnitShape::row, bound, DType::bf16, false);
  const std::vector<double> limits = bounds_of(x, UnitShape::row, bound);
  Matrix<uint8_t> symbols(kRows, kHeads * kDim);
  Matrix<float> back(kRows, kHeads * kDim);
  for (size_t head = 0; head < kHeads; ++head) {
    const auto part = [&](auto view) { return view.columns(head * kDim, kDim); };
    dequantize_bounded(part(whole.symbols.view()), UnitShape::row, whole.steps, {}, part(back.view()));
    Matrix<float> alone(kRows, kDim);
    for (size_t i = 0; i < kRows; ++i) std::ranges::copy(part(x.view()).row(i), alone.row(i).begin());
    const Quantized apart = quantize(alone, UnitShape::row, bound, DType::bf16, false);
    std::vector<float> steps(kRows);
    quantize_bounded(part(x.view()), UnitShape::row, bound, DType::bf16, {steps, {}, part(symbols.view())});
    CHECK(steps == apart.steps);
    for (size_t i = 0; i < kRows; ++i)
      CHECK(std::ranges::equal(part(symbols.view()).row(i), apart.symbols.row(i)));
  }
  for (size_t i = 0; i < kRows; ++i)
    for (size_t j = 0; j < kHeads * kDim; ++j)
      if (whole.symbols(i, j) != kExactSymbol)
        CHECK_LE(std::abs(double{round_to(DType::bf16, back(i, j))} - double{x(i, j)}), limits[i]);
  // The first unit's step is the same when its row stands alone.
  CHECK_EQ(quantize(x.view().rows(0, 1), UnitShape::block, bound, DType::bf16, false).steps[0],
           whole.steps[0]);
}

TEST_CASE("error-bounded quantization: what does not fit together is refused") {
  Matrix<float> x(2, 3);
  Matrix<uint8_t> symbols(2, 3);
  std::vector<float> three(3), two(2);
  std::vector<int16_t> origins(3);
  const auto refused = [&](UnitShape unit, const ErrorBound& bound, DType storage, std::span<float> steps,
                           std::span<int16_t> of_columns, MatrixView<uint8_t> out) {
    CHECK_THROWS_AS(quantize_bounded(x, unit, bound, storage, {steps, of_columns, out}), Error);
  };
  CHECK_THROWS_WITH_AS(quantize_bounded(x, UnitShape::column, {}, DType::f16, {three, origins, symbols}),
                       doctest::Contains("above 0"), Error);
  refused(UnitShape::column, {.range = 0.1}, DType::f16, two, origins, symbols);
  refused(UnitShape::column, {.range = 0.1}, DType::f32, three, origins, symbols);
  refused(UnitShape::row, {.range = 0.1}, DType::f16, two, origins, symbols);
  refused(UnitShape::column, {.range = 0.1}, DType::f16, three, {}, {symbols.data(), 2, 2});
  CHECK_THROWS_AS(dequantize_bounded(symbols, UnitShape::block, three, {}, x), Error);
}

}  // namespace error_bounded_test
