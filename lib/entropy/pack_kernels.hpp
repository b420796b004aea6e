// The inner loop of pack.hpp's unpacking once per instruction set, per lib/core/cpu.hpp. Inside lib/entropy only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::pack_kernels {

/// Widths whose ids, at any bit offset, lie within 4 bytes.
inline constexpr unsigned kMaxWidth = 25;

/// Ids of `width` bits (1..kMaxWidth) from that bit of the bytes on.
struct Packed {
  const uint8_t* bytes;
  size_t count;  ///< of bytes
  uint64_t first_bit;
  unsigned width;
};

/// Unpacks ids as long as that is faster in groups (scalar: never; avx2: 8 at a time while 16-byte loads stay inside); returns the number
/// of the n ids that it wrote to out (cut to the type of out). *largest is raised to the largest id seen, before cutting.
namespace scalar {
template <class Id>
size_t unpack(const Packed& in, Id* out, size_t n, uint32_t* largest);
}
KVCODEC_WIDE_VARIANT(avx2, scalar,
                     template <class Id>
                     size_t unpack(const Packed& in, Id* out, size_t n, uint32_t* largest);)

}  // namespace kvcodec::pack_kernels
