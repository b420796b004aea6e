// The loops behind huffman_kernels.hpp, compiled once per instruction set: everything here stands in an
// unnamed namespace, so that each compile unit keeps its own copy (lib/core/cpu.hpp says why).
#pragma once

#include <string.h>

#include "lib/entropy/huffman_kernels.hpp"

namespace kvcodec::huffman_kernels {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are swapped to and from big-endian below");

inline uint64_t load_big_endian(const uint8_t* bytes) {
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
  return __builtin_bswap64(word);
}

/// The bits from `bit` on, highest first: at least 57 of them. Bit 0 is set as a mark: how far the word is
/// shifted later is the number of zeros below the mark, which saves counting the bits look-up by look-up.
inline uint64_t load_marked(const uint8_t* in, uint64_t bit) {
  return (load_big_endian(in + bit / 8) << (bit % 8)) | 1;
}

/// The same near the end of the input: last is the last byte that 8 bytes can be read from, and zeros follow
/// the end.
inline uint64_t load_marked(const uint8_t* in, uint64_t last, uint64_t bit) {
  const uint64_t byte = bit / 8 < last ? bit / 8 : last;
  return (load_big_endian(in + byte) << ((bit - 8 * byte) & 63)) | 1;
}

template <class Symbol>
inline void look_up(const uint64_t* entries, unsigned shift, uint64_t& word, Symbol*& out) {
  const uint64_t entry = entries[word >> shift];
  const uint64_t symbols = (entry >> 16) | (entry << 48);  // a rotation: copies and shifts in one instruction
  memcpy(out, &symbols, sizeof symbols);
  out += (entry >> 8) & 0xff;
  word <<= entry & 63;
}

// Rounds of look-ups. A round loads 57 bits or more per lane once and makes kLookUps look-ups of at most
// 57 / kLookUps bits.

/// Rounds as long as no lane can come to its end or near the end of the input. The lanes advance together,
/// look-up by look-up: a processor sees only so far ahead, and finds independent work there.
template <size_t kCount, int kLookUps, class Symbol>
inline void decode_together(DecodeTable table, const uint8_t* in, uint64_t last, size_t n,
                            Lane<Symbol>* lanes) {
  constexpr size_t kRoundSymbols = kLookUps * (kBytesPerEntry / sizeof(Symbol));
  constexpr size_t kRoundBits = 57;  // or fewer
  const unsigned shift = 64 - table.window;
  uint64_t bit[kCount];
  Symbol* out[kCount];
#pragma GCC unroll 8
  for (size_t k = 0; k < kCount; ++k) {
    bit[k] = lanes[k].bit;
    out[k] = lanes[k].out;
  }
  while (true) {
    size_t rounds = n;  // that are safe without looking at symbols or bits again
#pragma GCC unroll 8
    for (size_t k = 0; k < kCount; ++k) {
      const size_t by_symbols = (n - static_cast<size_t>(out[k] - lanes[k].out)) / kRoundSymbols;
      const size_t by_bits = bit[k] > 8 * last ? 0 : (8 * last - bit[k]) / kRoundBits;
      rounds = rounds < by_symbols ? rounds : by_symbols;
      rounds = rounds < by_bits ? rounds : by_bits;
    }
    if (rounds == 0) break;
    for (; rounds > 0; --rounds) {
      uint64_t word[kCount];
#pragma GCC unroll 8
      for (size_t k = 0; k < kCount; ++k) word[k] = load_marked(in, bit[k]);
#pragma GCC unroll 8
      for (int i = 0; i < kLookUps; ++i)
#pragma GCC unroll 8
        for (size_t k = 0; k < kCount; ++k) look_up(table.entries, shift, word[k], out[k]);
#pragma GCC unroll 8
      for (size_t k = 0; k < kCount; ++k) bit[k] += static_cast<uint64_t>(__builtin_ctzll(word[k]));
    }
  }
#pragma GCC unroll 8
  for (size_t k = 0; k < kCount; ++k) {
    lanes[k].bit = bit[k];
    lanes[k].decoded = static_cast<size_t>(out[k] - lanes[k].out);
  }
}

/// Rounds until all lanes have n symbols. Each lane stays at the last look-up that did not go beyond n; one
/// that is done repeats its last round without effect, so nobody mispredicts a branch for it.
template <size_t kCount, int kLookUps, class Symbol>
inline void decode_rest(DecodeTable table, const uint8_t* in, uint64_t last, size_t n, Lane<Symbol>* lanes) {
  const unsigned shift = 64 - table.window;
  for (bool any_short = true; any_short;) {
    any_short = false;
    for (size_t k = 0; k < kCount; ++k) {
      const Symbol* const end = lanes[k].out + n;
      uint64_t word = load_marked(in, last, lanes[k].bit);
      Symbol* out = lanes[k].out + lanes[k].decoded;
      uint64_t word_within = word;
      Symbol* out_within = out;
#pragma GCC unroll 8
      for (int i = 0; i < kLookUps; ++i) {
        look_up(table.entries, shift, word, out);
        word_within = out <= end ? word : word_within;
        out_within = out <= end ? out : out_within;
      }
      lanes[k].bit += static_cast<uint64_t>(__builtin_ctzll(word_within));
      lanes[k].decoded = static_cast<size_t>(out_within - lanes[k].out);
      any_short |= out < end;
    }
  }
}

template <size_t kCount, class Symbol>
inline void decode_runs(DecodeTable table, const uint8_t* in, size_t in_bytes, size_t n,
                        Lane<Symbol>* lanes) {
  const uint64_t last = in_bytes - 8;
  if (table.window <= 11) {
    decode_together<kCount, 5>(table, in, last, n, lanes);
    decode_rest<kCount, 5>(table, in, last, n, lanes);
  } else {
    decode_together<kCount, 4>(table, in, last, n, lanes);
    decode_rest<kCount, 4>(table, in, last, n, lanes);
  }
}

template <class Symbol>
inline bool find(const Symbol* symbols, size_t n, Symbol wanted) {
  Symbol any = 0;  // no early exit, so that it is done in vectors
  for (size_t i = 0; i < n; ++i) any |= static_cast<Symbol>(symbols[i] == wanted);
  return any != 0;
}

/// Copies and looks in one pass, while the symbols are in the first-level cache.
template <class Symbol>
inline bool copy_rows(const Symbol* __restrict from, size_t rows, size_t n, Symbol wanted,
                      Symbol* __restrict to, size_t to_stride) {
  Symbol any = 0;
  for (size_t row = 0; row < rows; ++row, from += n, to += to_stride)
    for (size_t i = 0; i < n; ++i) {
      to[i] = from[i];
      any |= static_cast<Symbol>(from[i] == wanted);
    }
  return any != 0;
}

/// Codes are joined in words from the highest bit downwards, entry by entry: adding entries adds their
/// lengths in the low six bits, the only ones that shifts look at, and what an entry holds below its code
/// stays in the low 11 bits of whatever it is joined to, where no code reaches before it is cut off.
template <class Symbol>
inline size_t encode_runs(const uint64_t* table, const Symbol* symbols, size_t stride, size_t runs, size_t n,
                          uint8_t* out, uint64_t* bit, uint32_t* run_bits, uint64_t* flags) {
  constexpr uint64_t kCodes = ~uint64_t{0} << 16;  // where four codes of up to 12 bits lie
  uint64_t start = *bit;
  uint8_t* place = out + start / 8;
  uint64_t used = start % 8;
  uint64_t word = used == 0 ? 0 : static_cast<uint64_t>(*place >> (8 - used)) << (64 - used);
  *flags = 0;
  size_t run = 0;
  while (run < runs && *flags == 0) {
    uint64_t lengths = 0;  // OR of all sums of entries, for the flags in them
    const auto append = [&](uint64_t codes, uint64_t length) {
      word |= (codes & kCodes) >> used;
      used += length & 63;
      lengths |= length;
      const uint64_t bytes = __builtin_bswap64(word);
      memcpy(place, &bytes, sizeof bytes);
      place += used / 8;
      word <<= used & ~uint64_t{7};
      used %= 8;
    };
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
      const uint64_t a = table[symbols[i]], b = table[symbols[i + 1]];
      const uint64_t c = table[symbols[i + 2]], d = table[symbols[i + 3]];
      // In pairs, so that `used`, for which the next codes wait, takes one addition.
      const uint64_t front = a | b >> (a & 63), back = c | d >> (c & 63);
      append(front | back >> ((a + b) & 63), a + b + (c + d));
    }
    for (; i < n; ++i) append(table[symbols[i]], table[symbols[i]]);
    const uint64_t end = static_cast<uint64_t>(place - out) * 8 + used;
    run_bits[run++] = static_cast<uint32_t>(end - start);
    start = end;
    symbols += stride;
    *flags = lengths & (kIsEscape * 7 | kNoCode * 7);
  }
  *bit = start;
  return run;
}

}  // namespace
}  // namespace kvcodec::huffman_kernels
