// The 8-bit float E4M3 of the OCP specification (Micikevicius et al., "FP8 Formats for Deep Learning", 2022):
// 1 sign, 4 exponent (bias 7) and 3 mantissa bits. There is no infinity; 0x7f and 0xff are NaN, and the
// largest value is 448. Below 2^-6 values are subnormal, multiples of 2^-9.
//
// Narrowing rounds to nearest, ties to even, and clamps to 448: a value is off by at most a sixteenth of
// itself, by 2^-10 where it is subnormal, and by more only where it was clamped.
#pragma once

#include <cstdint>
#include <span>

namespace kvcodec {

inline constexpr float kLargestE4m3 = 448;
/// Magnitudes up to this one round to it; larger ones are clamped.
inline constexpr float kLargestRoundedE4m3 = 464;
/// The code of kLargestE4m3, except for the sign.
inline constexpr uint8_t kLargestE4m3Code = 0x7e;

/// The value of a code; NaN for 0x7f and 0xff.
float e4m3_to_float(uint8_t code);

/// The code of the nearest value; a NaN becomes 0x7f.
uint8_t e4m3_from_float(float value);

constexpr bool is_e4m3_nan(uint8_t code) { return (code & 0x7f) == 0x7f; }

/// codes[i] = that of x[i] / scale. scale: positive, finite. x.size() == codes.size().
inline void quantize_e4m3(std::span<const float> x, float scale, std::span<uint8_t> codes) {
  for (size_t i = 0; i < x.size(); ++i) codes[i] = e4m3_from_float(x[i] / scale);
}

/// x[i] = value of codes[i], times scale. Throws Error(bad_input) naming the first code that is NaN.
void dequantize_e4m3(std::span<const uint8_t> codes, float scale, std::span<float> x);

}  // namespace kvcodec
