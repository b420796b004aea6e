// The inner loop of rANS decoding in vectors, per lib/core/cpu.hpp. Inside lib/entropy only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::rans_kernels {

inline constexpr size_t kLanes = 8;
inline constexpr uint32_t kLowestState = 1u << 16;
/// Maximum bytes of words of a group of symbols, which the kernels read for it.
inline constexpr size_t kGroupBytes = kLanes * 2;

/// The meaning of a state's low `scale` bits, its slot, in two forms; `narrow` is there where scale <= 12, symbols
/// are below 256 and frequencies below 4096, the other two where `narrow` is null.
struct DecodeTable {
  unsigned scale;
  /// Per slot: symbol in bits 0..7, slot - start(symbol) in bits 8..19, frequency in bits 20..31.
  const uint32_t* narrow;
  /// Per slot its symbol; one element more than slots may be read.
  const uint16_t* symbols;
  /// Per symbol: frequency in bits 0..15, start in bits 16..31.
  const uint32_t* ranges;
};

/// One segment while it is decoded: the lanes' states, the next words, the place of the next symbols.
template <class Symbol>
struct Segment {
  uint32_t states[kLanes];
  const uint8_t* words;
  Symbol* out;
};

/// Segments that the wide kernels advance together: their pointers and states stay in registers, and four
/// chains of gathers hide each other's latency.
inline constexpr size_t kTogether = 4;

/// Decodes `groups` groups of 8 symbols in each of `count` segments (1 or kTogether), whose words all have
/// groups * kGroupBytes readable bytes. In scalar it does nothing: the decoder's own loop does all groups.
namespace scalar {
template <class Symbol>
void decode(const DecodeTable& table, Segment<Symbol>* segments, size_t count, size_t groups);
}
KVCODEC_WIDE_VARIANT(avx2, scalar,
                     template <class Symbol> void decode(const DecodeTable& table, Segment<Symbol>* segments,
                                                         size_t count, size_t groups);)

}  // namespace kvcodec::rans_kernels
