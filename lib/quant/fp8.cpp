#include "lib/quant/fp8.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr uint8_t kNan = 0x7f;
constexpr float kSmallestNormal = 0x1p-6f;

const std::array<float, 256>& values_of_codes() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (size_t code = 0; code < all.size(); ++code) {
      const auto exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
      float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      if (is_e4m3_nan(static_cast<uint8_t>(code))) value = std::numeric_limits<float>::quiet_NaN();
      all[code] = code & 0x80 ? -value : value;
    }
    return all;
  }();
  return values;
}

}  // namespace

float e4m3_to_float(uint8_t code) { return values_of_codes()[code]; }

uint8_t e4m3_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return kNan;
  if (magnitude >= std::bit_cast<uint32_t>(kLargestE4m3)) return static_cast<uint8_t>(sign | 0x7e);
  if (magnitude < std::bit_cast<uint32_t>(kSmallestNormal)) {
    // Adding 2^14 puts the unit 2^-9 in the last place of the sum, so the addition itself rounds to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  // The exponent's bias goes from 127 to 7; 20 mantissa bits go, rounded to even.
  const uint32_t rounded = magnitude - (120u << 23) + 0x7ffffu + (magnitude >> 20 & 1u);
  return static_cast<uint8_t>(sign | std::min<uint32_t>(rounded >> 20, 0x7e));
}

void quantize_e4m3(std::span<const float> x, float scale, std::span<uint8_t> codes) {
  for (size_t i = 0; i < x.size(); ++i) codes[i] = e4m3_from_float(x[i] / scale);
}

void dequantize_e4m3(std::span<const uint8_t> codes, float scale, std::span<float> x) {
  const std::array<float, 256>& values = values_of_codes();
  if (const auto bad = std::ranges::find_if(codes, is_e4m3_nan); bad != codes.end())
    throw bad_input("code {} of {} is {:#x}, which is not a number", bad - codes.begin(), codes.size(), *bad);
  for (size_t i = 0; i < codes.size(); ++i) x[i] = values[codes[i]] * scale;
}

}  // namespace kvcodec
