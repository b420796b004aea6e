// Huffman decoding by steps, for many runs side by side that step together: the work of a device's thread
// for its run (huffman.hpp defines runs). A step is a look-up by the next bits in a table of all their
// values, which has the next two codes; if two do not fit, it is two look-ups.
//
// For kernels too: no fmt and nothing that includes it.
#pragma once

#include <cstdint>

#include "lib/core/host_device.hpp"

namespace kvcodec {

/// The bytes of a little-endian load as a big-endian number.
KVCODEC_HD uint32_t swap_bytes(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, 0, 0x0123);
#else
  return __builtin_bswap32(word);
#endif
}

inline constexpr unsigned kStepWindow = 12;  ///< bits of a look-up, which the longest code has at most
inline constexpr int kStepZero = 127;        ///< the symbol of level 0

/// An entry of the table, one for each value of the next kStepWindow bits: the next two codes, or the first alone
/// if the second does not fit or one of them is the escape.
///   bits 0-3    the bits of both, or of the one, 1..12
///   bit 6       the first is the escape
///   bit 7       it is one alone
///   bits 8-11   the bits of the first
///   bits 16-23  the symbol of the first, kStepZero for the escape, which adds nothing to products
///   bits 24-31  the symbol of the second
KVCODEC_HD unsigned step_escapes(uint32_t entry) { return entry >> 6 & 1; }
KVCODEC_HD bool step_alone(uint32_t entry) { return (entry & 0x80) != 0; }
KVCODEC_HD uint32_t step_entry(unsigned symbol, unsigned length, bool escape) {
  const uint32_t level = escape ? kStepZero : symbol;
  return level << 16 | length << 8 | 0x80 | (escape ? 0x40u : 0u) | length;
}
/// An entry of two, neither of them the escape.
KVCODEC_HD uint32_t step_entry(unsigned first, unsigned first_length, unsigned second,
                               unsigned second_length) {
  return second << 24 | first << 16 | first_length << 8 | (first_length + second_length);
}

/// The symbol in byte kByte of an entry: 2, the first, or 3, the second.
template <unsigned kByte>
struct StepSymbol {
  uint32_t entry;

  KVCODEC_HD uint8_t symbol() const { return static_cast<uint8_t>(entry >> (8 * kByte)); }
  /// The symbol less kStepZero, exactly: the symbol becomes the last bits of 2^23.
  KVCODEC_HD float level() const {
#ifdef __CUDA_ARCH__
    const uint32_t bits = __byte_perm(entry, 0x4b000000u, 0x7440 + kByte);
#else
    const uint32_t bits = 0x4b000000u | symbol();
#endif
    return float_of(bits) - (8388608.0f + kStepZero);
  }
};

/// A stream of bytes in words of 4, as a little-endian machine reads them; word `last` is the last that can
/// be read, and is used in place of all words behind it.
struct WordStream {
  const uint32_t* words;
  uint32_t last;

  KVCODEC_HD uint32_t stored(uint32_t i) const { return words[i < last ? i : last]; }
  /// Word i with the bit that comes first in the stream highest.
  KVCODEC_HD uint32_t word(uint32_t i) const { return swap_bytes(stored(i)); }
  /// The `width` bits (0..32) from bit `bit` on.
  KVCODEC_HD uint32_t bits(uint64_t bit, unsigned width) const {
    const auto i = static_cast<uint32_t>(bit / 32);
    const uint64_t both = uint64_t{word(i)} << 32 | word(i + 1);
    return static_cast<uint32_t>((both << (bit % 32)) >> 32 >> (32 - width));
  }
};

/// The same for a stream in which words behind the last one can be read.
struct OpenWordStream {
  const uint32_t* words;

  KVCODEC_HD uint32_t stored(uint32_t i) const { return words[i]; }
  KVCODEC_HD uint32_t word(uint32_t i) const { return swap_bytes(words[i]); }
  KVCODEC_HD uint32_t bits(uint64_t bit, unsigned width) const {
    return WordStream{words, ~uint32_t{0}}.bits(bit, width);
  }
};

}  // namespace kvcodec
