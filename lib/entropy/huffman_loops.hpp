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

template <unsigned kWindow, class Symbol>
inline void look_up(const uint64_t* entries, uint64_t& word, Symbol*& out) {
  const uint64_t entry = entries[word >> (64 - kWindow)];
  memcpy(out - sizeof entry / sizeof(Symbol), &entry, sizeof entry);
  out -= (entry >> 8) & 0xff;
  word <<= entry & 63;
}

/// All bits where the condition holds: what is and-ed with it needs no branch that could be mispredicted.
inline uint64_t if_true(bool condition) { return uint64_t{0} - condition; }

// Rounds of look-ups. A round loads 57 bits or more per lane once and makes as many look-ups as they allow.
inline constexpr unsigned kRoundBits = 57;
template <unsigned kWindow>
inline constexpr int kLookUps = kRoundBits / kWindow;

/// A round in every lane. The lanes advance together, look-up by look-up: a processor sees only so far ahead,
/// and finds independent work there.
template <size_t kCount, unsigned kWindow, class Symbol>
inline void make_round(const uint64_t* entries, uint64_t* word, Symbol** out) {
#pragma GCC unroll 8
  for (int i = 0; i < kLookUps<kWindow>; ++i)
#pragma GCC unroll 8
    for (size_t k = 0; k < kCount; ++k) look_up<kWindow>(entries, word[k], out[k]);
}

/// Rounds as long as no lane can come to its end or near the end of the input.
template <size_t kCount, unsigned kWindow, class Symbol>
inline void decode_most(const uint64_t* entries, const uint8_t* in, uint64_t last, size_t n, uint64_t* bits,
                        Symbol** outs, Symbol* const* ends) {
  constexpr size_t kRoundSymbols = kLookUps<kWindow> * (kBytesPerEntry / sizeof(Symbol));
  uint64_t bit[kCount];
  Symbol* out[kCount];
#pragma GCC unroll 8
  for (size_t k = 0; k < kCount; ++k) bit[k] = bits[k], out[k] = outs[k];
  while (true) {
    size_t most_decoded = 0, last_bit = 0;
#pragma GCC unroll 8
    for (size_t k = 0; k < kCount; ++k) {
      const auto decoded = static_cast<size_t>(ends[k] - out[k]);
      most_decoded = most_decoded > decoded ? most_decoded : decoded;
      last_bit = last_bit > bit[k] ? last_bit : bit[k];
    }
    // Rounds that are safe without looking at symbols or bits again.
    const size_t by_symbols = (n - most_decoded) / kRoundSymbols;
    const size_t by_bits = last_bit > 8 * last ? 0 : (8 * last - last_bit) / kRoundBits;
    size_t rounds = by_symbols < by_bits ? by_symbols : by_bits;
    if (rounds == 0) break;
    for (; rounds > 0; --rounds) {
      uint64_t word[kCount];
#pragma GCC unroll 8
      for (size_t k = 0; k < kCount; ++k) word[k] = load_marked(in, bit[k]);
      make_round<kCount, kWindow>(entries, word, out);
#pragma GCC unroll 8
      for (size_t k = 0; k < kCount; ++k) bit[k] += static_cast<uint64_t>(__builtin_ctzll(word[k]));
    }
  }
#pragma GCC unroll 8
  for (size_t k = 0; k < kCount; ++k) bits[k] = bit[k], outs[k] = out[k];
}

/// Rounds until every lane has all its symbols. A lane stays before the round that would bring it beyond its
/// n-th symbol; that round is made all the same, again and again without effect, so that nobody mispredicts a
/// branch for it.
template <size_t kCount, unsigned kWindow, class Symbol>
inline void decode_last(const uint64_t* entries, const uint8_t* in, uint64_t last, size_t n, uint64_t* bit,
                        Symbol** out, Symbol* const* ends) {
  for (bool any = true; any;) {
    any = false;
    uint64_t word[kCount];
    Symbol* ahead[kCount];
#pragma GCC unroll 8
    for (size_t k = 0; k < kCount; ++k) word[k] = load_marked(in, last, bit[k]), ahead[k] = out[k];
    make_round<kCount, kWindow>(entries, word, ahead);
#pragma GCC unroll 8
    for (size_t k = 0; k < kCount; ++k) {
      const bool within = static_cast<size_t>(ends[k] - ahead[k]) <= n;
      bit[k] += static_cast<uint64_t>(__builtin_ctzll(word[k])) & if_true(within);
      out[k] -= static_cast<size_t>(out[k] - ahead[k]) & if_true(within);
      any |= within;
    }
  }
}

template <size_t kCount, unsigned kWindow, class Symbol>
inline void decode_with_window(const uint64_t* entries, const uint8_t* in, size_t in_bytes, size_t n,
                               Lane<Symbol>* lanes) {
  const uint64_t last = in_bytes - 8;
  uint64_t bit[kCount];
  Symbol *out[kCount], *ends[kCount];
  for (size_t k = 0; k < kCount; ++k) bit[k] = lanes[k].bit, out[k] = ends[k] = lanes[k].end;
  decode_most<kCount, kWindow>(entries, in, last, n, bit, out, ends);
  decode_last<kCount, kWindow>(entries, in, last, n, bit, out, ends);
  // The look-ups of the round that went beyond n, up to the one that did.
  for (size_t k = 0; k < kCount; ++k) {
    uint64_t word = load_marked(in, last, bit[k]), word_within = word;
    size_t decoded = static_cast<size_t>(ends[k] - out[k]), decoded_within = decoded;
#pragma GCC unroll 8
    for (int i = 0; i < kLookUps<kWindow>; ++i) {
      const uint64_t entry = entries[word >> (64 - kWindow)];
      decoded += (entry >> 8) & 0xff;
      word <<= entry & 63;
      word_within ^= (word ^ word_within) & if_true(decoded <= n);
      decoded_within ^= (decoded ^ decoded_within) & if_true(decoded <= n);
    }
    lanes[k].bit = bit[k] + static_cast<uint64_t>(__builtin_ctzll(word_within));
    lanes[k].decoded = decoded_within;
  }
}

template <size_t kCount, class Symbol>
inline void decode_runs(const DecodeTable& table, const uint8_t* in, size_t in_bytes, size_t n,
                        Lane<Symbol>* lanes) {
  if (table.window == kSmallWindow)
    decode_with_window<kCount, kSmallWindow>(table.entries, in, in_bytes, n, lanes);
  else
    decode_with_window<kCount, kLargeWindow>(table.entries, in, in_bytes, n, lanes);
}

/// Copies and looks in one pass, while the symbols are in the first-level cache.
template <class Symbol>
inline bool copy_rows(const Symbol* end, size_t rows, size_t n, Symbol wanted, Symbol* to, size_t to_stride) {
  Symbol any = 0;
  for (size_t row = 0; row < rows; ++row, end -= n, to += to_stride)
    for (size_t i = 0; i < n; ++i) {
      to[i] = *(end - 1 - i);
      any |= static_cast<Symbol>(to[i] == wanted);
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
