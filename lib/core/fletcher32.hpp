// The checksum of HDF5's Fletcher-32 filter, so that chunks can be written and verified without the filter
// pipeline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcodec {

/// Fletcher's checksum over big-endian 16-bit words with both sums modulo 65535 (zero only for all-zero data,
/// 65535 otherwise); an odd last byte is the upper half of a word. The second sum is in the upper 16 bits.
/// Uses wide instructions where the machine has them and gives the same value.
uint32_t fletcher32(std::span<const std::byte> bytes);

}  // namespace kvcodec
