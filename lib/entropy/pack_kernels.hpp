// Wide variants of pack.hpp's unpacking, per lib/core/cpu.hpp. Inside lib/entropy only.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kvcodec::pack_kernels::avx2 {

/// Widths whose ids, at any bit offset, lie within 4 bytes.
inline constexpr unsigned kMaxWidth = 25;

/// Unpacks ids from bit first_bit of in[0, in_bytes) on, 8 at a time, as long as whole groups are left and
/// 16-byte loads stay inside; returns how many of the n ids it wrote to out (cut to the type of out).
/// width: 1..kMaxWidth. *largest is raised to the largest id seen, before cutting.
size_t unpack(const uint8_t* in, size_t in_bytes, uint64_t first_bit, unsigned width, uint8_t* out, size_t n,
              uint32_t* largest);
size_t unpack(const uint8_t* in, size_t in_bytes, uint64_t first_bit, unsigned width, uint16_t* out, size_t n,
              uint32_t* largest);
size_t unpack(const uint8_t* in, size_t in_bytes, uint64_t first_bit, unsigned width, uint32_t* out, size_t n,
              uint32_t* largest);

}  // namespace kvcodec::pack_kernels::avx2
