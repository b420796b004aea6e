// The inner loop of Huffman decoding, once per instruction set (lib/core/cpu.hpp): BMI2's shifts take one
// instruction and leave the flags alone. Inside lib/entropy only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::huffman_kernels {

/// Bits that a look-up sees: as many as the longest code has. The table then takes 32 KiB.
inline constexpr unsigned kWindow = 12;

/// Symbols of an entry at most. An entry, one for each value of the next kWindow bits, has all symbols whose
/// codes lie entirely within them, but no more than fit:
///   bits  0..5   bits of these symbols together, 1..kWindow
///   bits  6..9   bits of the first symbol
///   bits 10..12  number of symbols, 1..kEntrySymbols
///   bits 16..63  the symbols, the first one lowest
inline constexpr size_t kEntrySymbols = 6;

/// Streams that are decoded side by side, so that the processor has independent work while a look-up waits.
inline constexpr size_t kLanes = 8;

/// A stream of symbols: from bit `bit` of the input to [out, end). Decoding moves bit and out behind what it
/// has decoded.
struct Lane {
  uint64_t bit;
  uint8_t *out, *end;
};

struct Table {
  /// Decodes kLanes lanes, or one, to their ends. Reads nothing outside in[0, in_bytes), in_bytes >= 8; what
  /// codes hold behind the end of the input is undefined.
  void (*decode_lanes)(const uint64_t* entries, const uint8_t* in, size_t in_bytes, Lane* lanes);
  void (*decode_lane)(const uint64_t* entries, const uint8_t* in, size_t in_bytes, Lane* lane);
};

namespace scalar {
const Table& table();
}
KVCODEC_WIDE_VARIANT(avx2, scalar, const Table& table();)

}  // namespace kvcodec::huffman_kernels
