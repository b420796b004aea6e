// The value of one level: functions that the CPU and a device share.
#pragma once

#include <cstdint>

#include "lib/core/host_device.hpp"

namespace kvcodec {

/// Number of levels whose reconstruction is learned; larger levels take the last one's shrink.
inline constexpr unsigned kShrunkLevels = 3;

/// Index of the shrink for a level of that size, which is not 0.
KVCODEC_HD unsigned shrunk_index(uint32_t size) { return (size < kShrunkLevels ? size : kShrunkLevels) - 1; }

/// shrink: kShrunkLevels numbers, in steps; unit: step times gain.
KVCODEC_HD float value_of_level(int32_t level, const float* shrink, float unit) {
  const uint32_t size = level < 0 ? 0u - static_cast<uint32_t>(level) : static_cast<uint32_t>(level);
  if (size == 0) return 0;
  const float value = (static_cast<float>(size) - shrink[shrunk_index(size)]) * unit;
  return level < 0 ? -value : value;
}

/// The inverse of the zigzag code, which maps 0, -1, 1, -2 … to 0, 1, 2, 3 …
KVCODEC_HD int32_t from_zigzag(uint32_t value) {
  return static_cast<int32_t>(value >> 1) ^ -static_cast<int32_t>(value & 1);
}

}  // namespace kvcodec
