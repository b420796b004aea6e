// One 16-bit float as a bit pattern, and back: see lib/core/half.hpp.
#pragma once

#include <cstdint>

#include "lib/core/host_device.hpp"

namespace kvcodec {

KVCODEC_HD float bf16_to_float(uint16_t bits) { return float_of(uint32_t{bits} << 16); }

KVCODEC_HD uint16_t bf16_from_float(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

KVCODEC_HD float f16_to_float(uint16_t half) {
#ifdef __CUDA_ARCH__
  float value;  // the same for all except the payload of NaNs
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f)  // infinity; a NaN becomes quiet, as the hardware's conversion does
    return float_of(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
  if (exponent != 0) return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal: exact in float
  return float_of(sign | bits_of(magnitude));
#endif
}

KVCODEC_HD uint16_t f16_from_float(float value) {
#ifdef __CUDA_ARCH__
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#else
  const uint32_t bits = bits_of(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u | static_cast<uint16_t>((magnitude >> 13) & 0x3ffu);
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                        // below 2^-14: subnormal, in units of 2^-24
    // Adding 0.5 puts the unit 2^-24 in the last place of the sum, so the addition itself rounds to even.
    const float shifted = float_of(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(bits_of(shifted) - 0x3f000000u);
  }
  return sign | static_cast<uint16_t>((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
#endif
}

/// A float as a sum of bf16, for products on hardware that multiplies nothing wider without losing digits (Henry, Tang and Heinecke 2019,
/// "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations"). The sum is the float, exactly, unless it
/// rounds to an infinity or the rest lies below the smallest bf16, 2^-133: each part is the nearest bf16 to the rest after those before
/// it, and takes 8 of its 24 bits off. Numbers that are exact in f16 take two parts, those exact in bf16 one; the other parts are zeros.
struct Bf16Parts {
  uint16_t part[3];
};
KVCODEC_HD Bf16Parts bf16_parts(float value) {
  Bf16Parts parts{};
  for (uint16_t& part : parts.part) {
    part = bf16_from_float(value);
    value -= bf16_to_float(part);
  }
  return parts;
}

}  // namespace kvcodec
