// The two 16-bit floats of key/value caches, as bit patterns, and their conversions.
// bf16: 1 sign, 8 exponent, 7 mantissa bits (the upper half of a float). f16: IEEE binary16 (1-5-10).
// Narrowing rounds to nearest, ties to even; f16 overflows to infinity beyond 65519.996, bf16 beyond float's
// range. NaNs stay NaNs (quiet). The bulk forms use wide instructions where the machine has them and give the
// same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "lib/core/dtype.hpp"

namespace kvcodec {

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float f16_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f)  // infinity; a NaN becomes quiet, as the hardware's conversion does
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal: exact in float
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline uint16_t f16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u | static_cast<uint16_t>((magnitude >> 13) & 0x3ffu);
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                        // below 2^-14: subnormal, in units of 2^-24
    // Adding 0.5 puts the unit 2^-24 in the last place of the sum, so the addition itself rounds to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000u);
  }
  return sign | static_cast<uint16_t>((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
}

/// Widens in.size() 16-bit floats of the given type (f16 or bf16) to float; out.size() == in.size().
void widen(DType type, std::span<const uint16_t> in, std::span<float> out);

/// Rounds in.size() floats to the 16-bit type (f16 or bf16); out.size() == in.size().
void narrow(DType type, std::span<const float> in, std::span<uint16_t> out);

/// The value as it comes back after being stored in `type` (f16, bf16 or f32).
inline float round_to(DType type, float value) {
  if (type == DType::bf16) return bf16_to_float(bf16_from_float(value));
  if (type == DType::f16) return f16_to_float(f16_from_float(value));
  return value;
}

}  // namespace kvcodec
