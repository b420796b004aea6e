#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/model/row_ops.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace model_row_ops_test {

using namespace kvcodec;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> normals(size_t n, Rng& rng, double scale = 1) {
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(scale * rng.normal());
  return values;
}

bool same_bytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

double relative_error(double found, double expected) {
  return std::abs(found - expected) / std::abs(expected);
}

}  // namespace

TEST_CASE("exp: relative error at most 1e-7 for every exponent from 0 down to the smallest normal float") {
  // All floats between two powers of two behave alike: every binade, 20,000 values spread over each.
  double worst = 0;
  for (int binade = -30; binade <= 6; ++binade) {
    std::vector<float> x;
    for (int i = 0; i < 20000; ++i) {
      const float value = -std::ldexp(1 + static_cast<float>(i) / 20000, binade);
      if (value > -87.33f) x.push_back(value);
    }
    std::vector<float> y = x;
    exp_nonpositive(y);
    for (size_t i = 0; i < x.size(); ++i)
      worst = std::max(worst, relative_error(y[i], std::exp(double(x[i]))));
  }
  CHECK_LE(worst, 1e-7);
  MESSAGE("largest relative error ", worst);
  std::vector<float> special = {
      0.0f, -0.0f, -87.4f, -1e6f, -kInfinity, kNan, -std::numeric_limits<float>::max()};
  exp_nonpositive(special);
  CHECK_EQ(special[0], 1.0f);
  CHECK_EQ(special[1], 1.0f);
  for (const size_t i : {2, 3, 4, 6}) CHECK_EQ(special[i], 0.0f);
  CHECK(std::isnan(special[5]));
}

TEST_CASE("silu: relative error at most 3e-7 down to results of 1.1e-36") {
  double worst = 0;
  for (int binade = -30; binade <= 10; ++binade)
    for (const float sign : {-1.0f, 1.0f}) {
      std::vector<float> x;
      for (int i = 0; i < 5000; ++i) x.push_back(sign * std::ldexp(1 + static_cast<float>(i) / 5000, binade));
      std::vector<float> y = x;
      activate(Activation::silu, y, {});
      for (size_t i = 0; i < x.size(); ++i) {
        const double expected = double(x[i]) / (1 + std::exp(-double(x[i])));
        if (std::abs(expected) < 1.1e-36)  // exp is 0 from where it would be subnormal
          CHECK_LE(std::abs(y[i]), 1.1e-36);
        else
          worst = std::max(worst, relative_error(y[i], expected));
      }
    }
  CHECK_LE(worst, 3e-7);
  MESSAGE("largest relative error ", worst);
  std::vector<float> special = {0.0f, kInfinity, kNan, -1e30f};
  activate(Activation::silu, special, std::vector<float>(4, 2.0f));
  CHECK_EQ(special[0], 0.0f);
  CHECK_EQ(special[1], kInfinity);
  CHECK(std::isnan(special[2]));
  CHECK_EQ(special[3], 0.0f);
}

TEST_CASE("RMS norm: as computed in double, of rows of any length") {
  Rng rng(21);
  for (const size_t n : {1, 2, 15, 16, 17, 31, 32, 33, 64, 127, 1000, 4096}) {
    CAPTURE(n);
    for (const double scale : {1e-12, 1.0, 1e12}) {
      const std::vector<float> x = normals(n, rng, scale), weight = normals(n, rng);
      std::vector<float> y(n);
      rms_norm(x, weight, 1e-6, y);
      double squares = 0;
      for (const float value : x) squares += double(value) * value;
      for (size_t i = 0; i < n; ++i) {
        const double expected = x[i] / std::sqrt(squares / double(n) + 1e-6) * weight[i];
        CHECK_LE(std::abs(y[i] - expected), 2e-7 * std::abs(expected));  // three roundings
      }
      std::vector<float> in_place = x;
      rms_norm(in_place, weight, 1e-6, in_place);
      CHECK(same_bytes(in_place, y));
    }
  }
}

TEST_CASE("layer norm: as computed in double, of rows of any length and far from 0") {
  Rng rng(26);
  for (const size_t n : {1, 2, 15, 16, 17, 31, 33, 127, 1000, 4096})
    for (const double mean : {0.0, 3.0, -1000.0}) {
      CAPTURE(n);
      std::vector<float> x = normals(n, rng);
      for (float& value : x) value = static_cast<float>(value + mean);
      const std::vector<float> weight = normals(n, rng), bias = normals(n, rng);
      std::vector<float> y(n);
      layer_norm(x, weight, bias, 1e-5, y);
      double sum = 0, squares = 0;
      for (const float value : x) sum += value;
      for (const float value : x) squares += std::pow(value - sum / double(n), 2);
      const double deviation = std::sqrt(squares / double(n) + 1e-5);
      for (size_t i = 0; i < n; ++i) {
        const double expected = (x[i] - sum / double(n)) / deviation * weight[i] + bias[i];
        // Roundings of the product and the sum, and that of the mean.
        const double allowed = 3e-7 * (std::abs(expected) + std::abs(bias[i])) +
                               6e-8 * std::abs(mean) / deviation * std::abs(weight[i]) + 1e-9;
        CHECK_LE(std::abs(y[i] - expected), allowed);
      }
      std::vector<float> in_place = x;
      layer_norm(in_place, weight, bias, 1e-5, in_place);
      CHECK(same_bytes(in_place, y));
    }
}

TEST_CASE("activations: as computed in double, with and without a factor") {
  std::vector<float> x, up;
  for (int i = -6000; i <= 6000; ++i) x.push_back(static_cast<float>(i) / 500), up.push_back(1.5f - x.back());
  const auto gelu = [](double v) { return 0.5 * v * std::erfc(-v / std::sqrt(2.0)); };
  const auto gelu_tanh = [](double v) {
    return v / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
  };
  const auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  const auto check = [&](Activation activation, const auto& exact) {
    std::vector<float> alone = x, times = x;
    activate(activation, alone, {});
    activate(activation, times, up);
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = exact(double(x[i]));
      // A rounding of an exponential's argument counts in proportion to its size.
      const double argument = expected == 0 ? 0 : std::abs(std::log(std::abs(expected / double(x[i]))));
      const double allowed = 2e-7 * (2 + argument) * std::abs(expected) + 1e-30;
      CHECK_LE(std::abs(alone[i] - expected), allowed);
      CHECK_LE(std::abs(times[i] - expected * up[i]), allowed * std::abs(up[i]) + 1e-30);
    }
  };
  check(Activation::silu, silu);
  check(Activation::gelu, gelu);
  check(Activation::gelu_tanh, gelu_tanh);
}

TEST_CASE("clamped gates: as computed in double, and bounded on both sides") {
  std::vector<float> x, up;
  for (int i = -1000; i <= 1000; ++i)
    x.push_back(static_cast<float>(i) / 50), up.push_back(x.back() * -0.7f + 0.3f);
  std::vector<float> y = x;
  activate(Activation::clamped_swiglu, y, up);
  for (size_t i = 0; i < x.size(); ++i) {
    const double gate = std::min(double(x[i]), 7.0), other = std::clamp(double(up[i]), -7.0, 7.0) + 1;
    const double expected = gate / (1 + std::exp(-double(1.702f) * gate)) * other;
    CHECK_LE(std::abs(y[i] - expected), 8e-6 * std::abs(expected) + 1e-6 * std::abs(gate) * 1e-6);
  }
  CHECK_THROWS_AS(activate(Activation::clamped_swiglu, y, {}), Error);
}

TEST_CASE("soft caps: cap * tanh(x / cap), small values keep their digits, large ones stop") {
  double worst = 0;
  for (int binade = -30; binade <= 8; ++binade)
    for (const float sign : {-1.0f, 1.0f}) {
      std::vector<float> x;
      for (int i = 0; i < 3000; ++i) x.push_back(sign * std::ldexp(1 + static_cast<float>(i) / 3000, binade));
      std::vector<float> y = x;
      soft_cap(y, 5);
      for (size_t i = 0; i < x.size(); ++i)
        worst = std::max(worst, relative_error(y[i], 5 * std::tanh(double(x[i]) / 5)));
    }
  CHECK_LE(worst, 4e-7);
  MESSAGE("largest relative error ", worst);
  std::vector<float> special = {0.0f, kInfinity, -kInfinity, kNan, 1e30f};
  soft_cap(special, 5);
  CHECK_EQ(special[0], 0.0f);
  CHECK_EQ(special[1], 5.0f);
  CHECK_EQ(special[2], -5.0f);
  CHECK(std::isnan(special[3]));
  CHECK_EQ(special[4], 5.0f);
}

TEST_CASE("softmax by blocks: weights and sum as of the whole row in double, wherever it is cut and masked") {
  Rng rng(22);
  for (const size_t blocks : {1, 2, 5})
    for (const size_t width : {16, 32, 512}) {
      const std::vector<float> scores = normals(blocks * width, rng, 8);
      std::vector<float> masked = scores;
      for (size_t i = 1; i < masked.size();
           ++i)  // the first stays, so that there is a maximum from the start
        if (rng.below(3) == 0) masked[i] = -kInfinity;
      std::vector<float> weights = masked;
      SoftmaxState state;
      for (size_t block = 0; block < blocks; ++block) {
        const std::span<float> of_block = std::span(weights).subspan(block * width, width);
        const float factor = softmax_block(of_block, state);
        scale(std::span(weights).first(block * width), factor);
      }
      const double max = *std::max_element(masked.begin(), masked.end());
      double sum = 0;
      for (const float score : masked) sum += std::exp(score - max);
      CHECK_EQ(state.max, static_cast<float>(max));
      CHECK_LE(relative_error(state.sum, sum), 1e-5);
      for (size_t i = 0; i < masked.size(); ++i) {
        CHECK_LE(std::abs(weights[i] - std::exp(masked[i] - max)), 2e-6 * std::exp(masked[i] - max) + 1e-37);
        if (masked[i] == -kInfinity) CHECK_EQ(weights[i], 0.0f);
      }
    }
  std::vector<float> with_nan(16, 1.0f);
  with_nan[3] = kNan;
  SoftmaxState state;
  softmax_block(with_nan, state);
  CHECK(std::isnan(state.sum));  // an overflow before must not pass for a number
  std::vector<float> odd(17);
  CHECK_THROWS_AS(softmax_block(odd, state), Error);
}

TEST_CASE("row operations refuse rows of different lengths") {
  std::vector<float> four(4), five(5), two(2);
  CHECK_THROWS_AS(rms_norm(four, five, 0, four), Error);
  CHECK_THROWS_AS(rms_norm(four, four, 0, five), Error);
  CHECK_THROWS_AS(activate(Activation::silu, four, five), Error);
  CHECK_THROWS_AS(add_to(four, five), Error);
  CHECK_THROWS_AS(turn_pairs(five, two, two), Error);
  CHECK_THROWS_AS(turn_pairs(four, two, four), Error);
}

TEST_CASE("row operations give the same bits with every instruction set, at any length and alignment") {
  Rng rng(23);
  std::vector<size_t> sizes = {64, 100, 128, 1000, 4097};
  for (size_t n = 0; n <= 49; ++n) sizes.push_back(n);
  for (const size_t n : sizes)
    for (const size_t shift : {0, 1, 3}) {
      CAPTURE(n);
      const std::vector<float> x = normals(n + shift, rng, 10), y = normals(n + shift, rng);
      const size_t padded = (n + 15) / 16 * 16;
      const std::vector<float> scores = normals(padded + shift, rng, 10);
      const auto all = [&] {
        std::vector<float> result;
        const auto keep = [&](std::span<const float> values) {
          result.insert(result.end(), values.begin(), values.end());
        };
        const std::span<const float> weight = std::span(y).subspan(shift);
        std::vector<float> row = x;
        const std::span<float> part = std::span(row).subspan(shift);
        if (n > 0) rms_norm(part, weight, 1e-5, part);
        keep(row);
        row = x;
        if (n > 0) layer_norm(part, weight, weight, 1e-5, part);
        keep(row);
        row = x, activate(Activation::silu, part, weight), keep(row);
        row = x, activate(Activation::gelu_tanh, part, weight), keep(row);
        row = x, activate(Activation::gelu_tanh, part, {}), keep(row);
        row = x, activate(Activation::gelu, part, weight), keep(row);
        row = x, activate(Activation::clamped_swiglu, part, weight), keep(row);
        row = x, soft_cap(part, 3), keep(row);
        row = x;
        for (float& value : row) value = -std::abs(value);
        exp_nonpositive(part), keep(row);
        row = x, add_to(part, weight), keep(row);
        row = x, scale(part, 1.7f), keep(row);
        const size_t half = n / 2;
        row = x, turn_pairs(part.first(2 * half), weight.first(half), weight.last(half)), keep(row);
        if (n > 0) {
          SoftmaxState state{0.5f, 2.0f};
          row = scores;
          result.push_back(softmax_block(std::span(row).subspan(shift, padded), state));
          keep(row), result.push_back(state.max), result.push_back(state.sum);
        }
        return result;
      };
      std::vector<float> reference;
      for (const SimdLevel level : test::simd_levels()) {
        const test::AtLevel at(level);
        CAPTURE(name_of(level));
        const std::vector<float> result = all();
        if (reference.empty()) reference = result;
        CHECK(same_bytes(reference, result));
      }
    }
}

TEST_CASE("row sums and products: those of the definition in double, the same bits at every level") {
  Rng rng(5);
  for (const size_t n : {0, 1, 15, 16, 17, 31, 1024, 1025}) {
    CAPTURE(n);
    const auto x = normals(n + 1, rng, 3), y = normals(n + 1, rng, 3);
    for (const size_t from : {0, 1}) {  // misaligned too
      const std::span<const float> a(x.data() + from, n), b(y.data() + from, n);
      double total = 0, products = 0;
      for (size_t i = 0; i < n; ++i) total += double{a[i]}, products += double{a[i]} * double{b[i]};
      std::vector<double> found;
      for (const SimdLevel level : test::simd_levels()) {
        const test::AtLevel at(level);
        CHECK(sum(a) == doctest::Approx(total).epsilon(1e-12).scale(1));
        CHECK(dot(a, b) == doctest::Approx(products).epsilon(1e-12).scale(1));
        found.push_back(sum(a));
        found.push_back(dot(a, b));
      }
      for (size_t i = 2; i < found.size(); ++i) CHECK_EQ(found[i], found[i % 2]);
    }
  }
  CHECK_THROWS_AS(dot(std::vector<float>(2), std::vector<float>(3)), Error);
}

}  // namespace model_row_ops_test
