// Floats as sums of bf16, for products on hardware that multiplies nothing wider without losing digits
// (Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for
// higher-precision computations").
#pragma once

#include <cstdint>

#include "lib/core/half_bits.hpp"

namespace kvcodec {

/// Their sum is the float, exactly, unless it rounds to an infinity or what is left of it lies below the
/// smallest bf16, 2^-133: each part is the nearest bf16 to what those before leave, and takes 8 of its 24
/// bits off. What is exact in f16 takes two parts, what is exact in bf16 one; the others are zeros.
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
