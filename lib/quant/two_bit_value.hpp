// One value of a row of 2-bit levels: see lib/quant/two_bit.hpp.
#pragma once

#include <cstdint>

#include "lib/core/host_device.hpp"

namespace kvcodec {

/// Level j % 4 of the byte that holds it.
KVCODEC_HD unsigned two_bit_level(unsigned byte, unsigned j) { return (byte >> (6 - 2 * (j % 4))) & 3; }

/// What a level stands for, nothing fused.
KVCODEC_HD float two_bit_value(unsigned level, float scale, float zero) {
  return zero + static_cast<float>(level) * scale;
}

}  // namespace kvcodec
