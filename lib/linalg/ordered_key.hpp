// Integers in the order of floats: see lib/linalg/topk.hpp.
#pragma once

#include <cstdint>

#include "lib/core/host_device.hpp"

namespace kvcodec {

/// An integer for a score, in the same order; both zeros are the same. The score is not a NaN.
KVCODEC_HD int32_t ordered_key(float score) {
  const auto bits = static_cast<int32_t>(bits_of(score + 0.0f));  // -0 becomes 0
  return bits ^ static_cast<int32_t>(static_cast<uint32_t>(bits >> 31) >> 1);
}

/// The same without a sign, above 0 for all scores above -infinity.
KVCODEC_HD uint32_t unsigned_key(float score) {
  return static_cast<uint32_t>(ordered_key(score)) ^ 0x80000000u;
}

}  // namespace kvcodec
