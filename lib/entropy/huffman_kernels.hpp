// The inner loop of Huffman decoding, which is compiled once per instruction set (lib/core/cpu.hpp): BMI2's shifts take
// one instruction and leave the flags alone. Inside lib/entropy only.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/core/variants.hpp"

namespace kvcodec::huffman_kernels {

/// Bits of a look-up: as many as the longest code has. The table then takes 32 KiB.
inline constexpr unsigned kWindow = 12;

/// Maximum number of symbols of an entry. An entry, one for each value of the next kWindow bits, has all symbols whose
/// codes lie entirely within them, up to that number:
///   bits  0..5   bits of these symbols together, 1..kWindow
///   bits  6..9   bits of the first symbol
///   bits 10..12  number of symbols, 1..kEntrySymbols
///   bits 16..63  the symbols, the first one lowest
inline constexpr size_t kEntrySymbols = 6;

/// Streams that are decoded side by side, so that the processor has independent work while a look-up waits.
inline constexpr size_t kLanes = 8;

/// A stream of symbols: from bit `bit` of the input to [out, end). Decoding moves bit and out behind what it has decoded.
struct Lane {
  uint64_t bit;
  uint8_t *out, *end;
};

struct Table {
  /// Decodes kLanes lanes, or one, to their ends. Reads nothing outside in[0, in_bytes), in_bytes >= 8;
  /// codes behind the end of the input are undefined.
  void (*decode_lanes)(const uint64_t* entries, const uint8_t* in, size_t in_bytes, Lane* lanes);
  void (*decode_lane)(const uint64_t* entries, const uint8_t* in, size_t in_bytes, Lane* lane);
};

namespace scalar {
const Table& table();
}
KVCODEC_WIDE_VARIANT(avx2, scalar, const Table& table();)

namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are swapped from big-endian below");

/// Minimum number of bits of one load, and the number of look-ups that they suffice for.
constexpr uint64_t kLoadBits = 57;
constexpr size_t kLookUps = kLoadBits / kWindow;

/// Maximum number of symbols of a round of look-ups, and the additional bytes that its last store writes.
constexpr size_t kRoundSymbols = kLookUps * kEntrySymbols, kSlack = sizeof(uint64_t) - kEntrySymbols;

/// The bits from `bit` on, highest first; last: the last byte that 8 bytes can be read from.
inline uint64_t load_bits(const uint8_t* in, uint64_t last, uint64_t bit) {
  const uint64_t byte = bit / 8 < last ? bit / 8 : last;
  uint64_t word;
  memcpy(&word, in + byte, sizeof word);
  return __builtin_bswap64(word) << ((bit - 8 * byte) & 63);
}

/// Number of rounds of look-ups in which no lane can leave its room or the input.
template <size_t kCount>
size_t safe_rounds(const Lane* lanes, uint64_t last) {
  size_t least_room = ~size_t{0};
  uint64_t last_bit = 0;
  for (size_t k = 0; k < kCount; ++k) {
    const auto room = (size_t)(lanes[k].end - lanes[k].out);
    least_room = room < least_room ? room : least_room;
    last_bit = lanes[k].bit > last_bit ? lanes[k].bit : last_bit;
  }
  const size_t by_room = least_room < kSlack ? 0 : (least_room - kSlack) / kRoundSymbols;
  const size_t by_bits = last_bit > 8 * last ? 0 : (8 * last - last_bit) / kLoadBits;
  return by_room < by_bits ? by_room : by_bits;
}

/// The lanes advance together, look-up by look-up: a processor sees only so far ahead, and finds independent
/// work there. First whole entries, in rounds for which no lane asks how far its end is; then symbol by symbol, to the ends.
template <size_t kCount>
inline void decode(const uint64_t* entries, const uint8_t* in, size_t in_bytes, Lane* lanes) {
  const uint64_t last = in_bytes - 8;
  Lane lane[kCount];
#pragma GCC unroll 8
  for (size_t k = 0; k < kCount; ++k) lane[k] = lanes[k];
  while (size_t rounds = safe_rounds<kCount>(lane, last))
    for (; rounds > 0; --rounds) {
      uint64_t word[kCount];
      // Its lowest bit is a mark, not input: how far it has moved up at the end is how many bits were used.
#pragma GCC unroll 8
      for (size_t k = 0; k < kCount; ++k) word[k] = load_bits(in, last, lane[k].bit) | 1;
#pragma GCC unroll 8
      for (size_t i = 0; i < kLookUps; ++i)
#pragma GCC unroll 8
        for (size_t k = 0; k < kCount; ++k) {
          const uint64_t entry = entries[word[k] >> (64 - kWindow)], symbols = entry >> 16;
          memcpy(lane[k].out, &symbols,
                 sizeof symbols);  // more than count: the next look-up writes over the rest
          lane[k].out += entry >> 10 & 7;
          word[k] <<= entry & 63;
        }
#pragma GCC unroll 8
      for (size_t k = 0; k < kCount; ++k) lane[k].bit += (uint64_t)__builtin_ctzll(word[k]);
    }
  for (bool unfinished = true; unfinished;) {
    unfinished = false;
    for (size_t k = 0; k < kCount; ++k) {
      if (lane[k].out == lane[k].end) continue;
      const uint64_t entry = entries[load_bits(in, last, lane[k].bit) >> (64 - kWindow)];
      *lane[k].out++ = (uint8_t)(entry >> 16);
      lane[k].bit += entry >> 6 & 15;
      unfinished = true;
    }
  }
  for (size_t k = 0; k < kCount; ++k) lanes[k] = lane[k];
}

constexpr Table kTable = {decode<kLanes>, decode<1>};

}  // namespace

const Table& KVCODEC_LEVEL::table() { return kTable; }

}  // namespace kvcodec::huffman_kernels
