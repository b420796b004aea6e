#include "lib/quant/fp8.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec {

constexpr uint8_t kNan = 0x7f;
constexpr float kSmallestNormal = 0x1p-6f;

static const std::array<float, 256>& values_of_codes() {
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

float e4m3_to_float(uint8_t code) { return values_of_codes()[code]; }

uint8_t e4m3_from_float(float value) {
  // Both cases are computed, without a branch, so that the compiler can make vectors of a loop. Magnitudes are compared as signed
  // numbers, which every instruction set can.
  const auto bits = std::bit_cast<int32_t>(value);
  const int32_t magnitude = bits & 0x7fffffff;
  // The exponent's bias goes from 127 to 7; 20 mantissa bits go, rounded to even.
  const int32_t kept = std::min(magnitude, std::bit_cast<int32_t>(kLargestE4m3));
  const int32_t normal = (kept - (120 << 23) + 0x7ffff + (kept >> 20 & 1)) >> 20;
  // Adding 2^14 puts the unit 2^-9 in the last place of the sum, so the addition itself rounds to even.
  const int32_t subnormal = std::bit_cast<int32_t>(std::bit_cast<float>(kept) + 0x1p14f) - 0x46800000;
  const int32_t code = kept < std::bit_cast<int32_t>(kSmallestNormal) ? subnormal : normal;
  return static_cast<uint8_t>(magnitude > 0x7f800000 ? kNan : (bits >> 24 & 0x80) | code);
}

void dequantize_e4m3(std::span<const uint8_t> codes, float scale, std::span<float> x) {
  const std::array<float, 256>& values = values_of_codes();
  if (const auto bad = std::ranges::find_if(codes, is_e4m3_nan); bad != codes.end())
    throw bad_input("code {} of {} is {:#x}, which is not a number", bad - codes.begin(), codes.size(), *bad);
  for (size_t i = 0; i < codes.size(); ++i) x[i] = values[codes[i]] * scale;
}

}  // namespace kvcodec
