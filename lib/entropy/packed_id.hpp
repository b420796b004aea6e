// One id of a packed stream: see lib/entropy/pack.hpp.
#pragma once

#include <cstdint>

#include "lib/core/host_device.hpp"

namespace kvcodec {

/// The id of `width` bits (1..32) that begins at bit `offset` (0..31) of two words of 32 bits, each read from
/// the stream as a big-endian number.
KVCODEC_HD uint32_t packed_id(uint32_t word, uint32_t next, unsigned offset, unsigned width) {
  return static_cast<uint32_t>(((uint64_t{word} << 32 | next) << offset) >> (64 - width));
}

/// The bytes of a little-endian load as a big-endian number.
KVCODEC_HD uint32_t swap_bytes(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, 0, 0x0123);
#else
  return __builtin_bswap32(word);
#endif
}

}  // namespace kvcodec
