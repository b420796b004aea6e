// Huffman decoding one symbol at a time, for many runs side by side that step together: what a thread of a
// device does for its run (huffman.hpp says what a run is). A step is a look-up by the next bits in a table
// of all their values, and a shift; nothing in it branches.
//
// For kernels too: no fmt and nothing that includes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/host_device.hpp"

namespace kvcodec {

/// An entry of the table, one for each value of the next `window` bits:
///   bits 0-3    the length of the code that stands there, 1..12
///   bit 4       it is the escape
///   bits 8-15   its symbol
///   bits 16-31  its symbol less the zero symbol, -128..255, as bf16 (exact), 0 for the escape: what products
///   take
KVCODEC_HD unsigned step_length(uint32_t entry) { return entry & 15; }
KVCODEC_HD unsigned step_escapes(uint32_t entry) { return entry >> 4 & 1; }
KVCODEC_HD uint8_t step_symbol(uint32_t entry) { return static_cast<uint8_t>(entry >> 8); }
KVCODEC_HD float step_level(uint32_t entry) { return float_of(entry & 0xffff0000u); }
KVCODEC_HD uint32_t step_entry(unsigned symbol, unsigned length, bool escape, int zero_symbol) {
  const float level = escape ? 0.0f : static_cast<float>(static_cast<int>(symbol) - zero_symbol);
  return (bits_of(level) & 0xffff0000u) | symbol << 8 | static_cast<uint32_t>(escape) << 4 | length;
}

/// A stream of bytes in words of 4, as a little-endian machine reads them; word `last` is the last that can
/// be read, and stands for all behind it.
struct WordStream {
  const uint32_t* words;
  uint32_t last;

  /// Word i with the bit that comes first in the stream highest.
  KVCODEC_HD uint32_t word(uint32_t i) const {
    const uint32_t value = words[i < last ? i : last];
#ifdef __CUDA_ARCH__
    return __byte_perm(value, 0, 0x0123);
#else
    return __builtin_bswap32(value);
#endif
  }
  /// The `width` bits (0..32) from bit `bit` on.
  KVCODEC_HD uint32_t bits(uint64_t bit, unsigned width) const {
    const auto i = static_cast<uint32_t>(bit / 32);
    const uint64_t both = uint64_t{word(i)} << 32 | word(i + 1);
    return static_cast<uint32_t>((both << (bit % 32)) >> 32 >> (32 - width));
  }
};

/// A place in a stream that moves forward.
class BitCursor {
 public:
  KVCODEC_HD BitCursor(const WordStream& stream, uint64_t bit)
      : stream_(stream), next_(static_cast<uint32_t>(bit / 32) + 2), valid_(64 - static_cast<int>(bit % 32)) {
    bits_ = (uint64_t{stream.word(next_ - 2)} << 32 | stream.word(next_ - 1)) << (bit % 32);
  }
  /// Makes at least the next 33 bits ready: steps for two codes of 12 bits, or three of 11.
  KVCODEC_HD void refill() {
    const bool few = valid_ <= 32;
    const uint64_t more = uint64_t{stream_.word(next_)} << ((32 - valid_) & 63);
    bits_ |= few ? more : 0;
    valid_ += few ? 32 : 0;
    next_ += few ? 1 : 0;
  }
  /// The entry for the next code, which is passed over.
  KVCODEC_HD uint32_t step(const uint32_t* table, unsigned window) {
    const uint32_t entry = table[static_cast<uint32_t>(bits_ >> 32) >> (32 - window)];
    bits_ <<= step_length(entry);
    valid_ -= static_cast<int>(step_length(entry));
    return entry;
  }
  KVCODEC_HD uint64_t position() const {
    return uint64_t{next_} * 32 - static_cast<uint64_t>(static_cast<int64_t>(valid_));
  }

 private:
  WordStream stream_;
  uint32_t next_;  // the word that follows those in bits_
  int valid_;      // bits of bits_ that are of the stream, from the highest down; may fall below 33
  uint64_t bits_;
};

}  // namespace kvcodec
