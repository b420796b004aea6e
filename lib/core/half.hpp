// The two 16-bit floats of key/value caches, as bit patterns, and their conversions.
// bf16: 1 sign, 8 exponent, 7 mantissa bits (the upper half of a float). f16: IEEE binary16 (1-5-10). Narrowing rounds to nearest, ties to
// even; f16 overflows to infinity beyond 65519.996, bf16 beyond float's range. NaNs stay NaNs (quiet). The bulk forms use wide instructions
// where the machine has them and give the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/core/half_bits.hpp"

namespace kvcodec {

/// Widens in.size() 16-bit floats of the given type (f16 or bf16) to float; out.size() == in.size().
void widen(DType type, std::span<const uint16_t> in, std::span<float> out);

/// Rounds in.size() floats to the 16-bit type (f16 or bf16); out.size() == in.size().
void narrow(DType type, std::span<const float> in, std::span<uint16_t> out);

/// The values, finite ones beyond the range of `type` (f16, bf16 or f32) replaced by its largest one of their sign.
std::vector<float> clipped(DType type, std::span<const float> values);

/// The value as it comes back after being stored in `type` (f16, bf16 or f32).
inline float round_to(DType type, float value) {
  if (type == DType::bf16) return bf16_to_float(bf16_from_float(value));
  if (type == DType::f16) return f16_to_float(f16_from_float(value));
  return value;
}

}  // namespace kvcodec
