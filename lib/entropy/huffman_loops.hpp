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

/// Fetches what will be needed soon, step by step, so much per step as a round of lanes mostly takes: the
/// lines of the target, and input behind the last lane, which likely is decoded next. Addresses are numbers
/// here: they may lie behind the end of anything.
class Prefetch {
 public:
  Prefetch(Target target, const uint8_t* input)
      : place_(reinterpret_cast<uintptr_t>(target.to)),
        input_(reinterpret_cast<uintptr_t>(input)),
        apart_(target.apart),
        back_(kLines * kLine - (kLanes - 1) * target.apart) {}

  void step() {
    for (size_t i = 0; i < kLines; ++i)
      __builtin_prefetch(reinterpret_cast<const void*>(place_ + i * kLine), 1);
    __builtin_prefetch(reinterpret_cast<const void*>(input_));
    input_ += kLine;
    lane_ = (lane_ + 1) % kLanes;
    place_ += lane_ == 0 ? back_ : apart_;
  }

 private:
  static constexpr size_t kLine = 64, kLines = 3;
  uintptr_t place_, input_;
  size_t apart_, back_, lane_ = 0;
};

/// Rounds as long as no lane can come to its end or near the end of the input.
template <size_t kCount, unsigned kWindow, class Symbol>
inline void decode_most(const uint64_t* entries, const uint8_t* in, uint64_t last, size_t n, Target target,
                        uint64_t* bits, Symbol** outs, Symbol* const* ends) {
  Prefetch prefetch(target, in + bits[kCount - 1] / 8);
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
      if constexpr (kCount > 1) prefetch.step();
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

/// Makes rounds until all symbols of every lane are written. A lane stops before the round that goes beyond
/// its n-th symbol. That round is repeated until all lanes have stopped, but does not advance the lane: so
/// there is no branch to mispredict.
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
                               Target target, Lane<Symbol>* lanes) {
  const uint64_t last = in_bytes - 8;
  uint64_t bit[kCount];
  Symbol *out[kCount], *ends[kCount];
  for (size_t k = 0; k < kCount; ++k) bit[k] = lanes[k].bit, out[k] = ends[k] = lanes[k].end;
  decode_most<kCount, kWindow>(entries, in, last, n, target, bit, out, ends);
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
inline void decode_runs(const DecodeTable& table, const uint8_t* in, size_t in_bytes, size_t n, Target target,
                        Lane<Symbol>* lanes) {
  if (table.window == kSmallWindow)
    decode_with_window<kCount, kSmallWindow>(table.entries, in, in_bytes, n, target, lanes);
  else
    decode_with_window<kCount, kLargeWindow>(table.entries, in, in_bytes, n, target, lanes);
}

/// 8 bytes of symbols in reverse.
inline uint64_t reversed(uint64_t symbols, uint8_t) { return __builtin_bswap64(symbols); }
inline uint64_t reversed(uint64_t symbols, uint16_t) {
  const uint64_t halves = symbols << 32 | symbols >> 32;
  return (halves & 0x0000ffff0000ffff) << 16 | (halves >> 16 & 0x0000ffff0000ffff);
}

template <class Symbol>
inline bool copy_rows(const Symbol* end, size_t rows, size_t n, Symbol wanted, Symbol* to, size_t to_stride) {
  constexpr size_t kWidth = sizeof(uint64_t) / sizeof(Symbol);
  Symbol any = 0;
  for (size_t row = 0; row < rows; ++row, end -= n, to += to_stride) {
    size_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      uint64_t symbols;
      memcpy(&symbols, end - i - kWidth, sizeof symbols);
      symbols = reversed(symbols, wanted);
      memcpy(to + i, &symbols, sizeof symbols);
    }
    for (; i < n; ++i) to[i] = *(end - 1 - i);
    for (i = 0; i < n; ++i) any |= static_cast<Symbol>(to[i] == wanted);  // by itself it is done in vectors
  }
  return any != 0;
}

/// Writes codes behind each other.
class CodeWriter {
 public:
  CodeWriter(uint8_t* out, uint64_t bit) : out_(out), place_(out + bit / 8), used_(bit % 8) {
    word_ = used_ == 0 ? 0 : static_cast<uint64_t>(*place_ >> (8 - used_)) << (64 - used_);
  }

  /// Up to 56 bits, from bit 63 of `codes` downwards, zeros below.
  void put(uint64_t codes, uint64_t bits) {
    word_ |= codes >> used_;
    used_ += bits;
    const uint64_t bytes = __builtin_bswap64(word_);
    memcpy(place_, &bytes, sizeof bytes);
    place_ += used_ / 8;
    word_ <<= used_ & ~uint64_t{7};
    used_ %= 8;
  }

  uint64_t bit() const { return static_cast<uint64_t>(place_ - out_) * 8 + used_; }

 private:
  uint8_t *out_, *place_;
  uint64_t used_;  // bits of the byte at place_, 0..7
  uint64_t word_;  // they, highest first
};

// Entries are joined like their codes: adding entries adds their bits, of which shifts look at the low six;
// what an entry holds below its code stays in the low 14 bits of whatever it is joined to.
inline constexpr uint64_t kBits = 127;
inline constexpr uint64_t kFlags = kIsEscape * 7 | kNoCode * 7;
inline constexpr uint64_t kFourCodes = ~uint64_t{0} << 16;  // where four codes of up to 12 bits lie
inline uint64_t joined(uint64_t a, uint64_t b) { return a | b >> (a & 63); }

/// Writes n symbols; returns the flags in their entries.
template <class Symbol>
inline uint64_t encode_singly(const uint64_t* codes, const Symbol* symbols, size_t n, CodeWriter& writer) {
  uint64_t flags = 0;
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const uint64_t a = codes[symbols[i]], b = codes[symbols[i + 1]];
    const uint64_t c = codes[symbols[i + 2]], d = codes[symbols[i + 3]];
    // In pairs, so that the next codes wait for one addition.
    const uint64_t sum = a + b + (c + d);
    const uint64_t front = joined(a, b), back = joined(c, d);
    writer.put((front | back >> ((a + b) & 63)) & kFourCodes, sum & kBits);
    flags |= sum;
  }
  for (; i < n; ++i) {
    const uint64_t a = codes[symbols[i]];
    writer.put(a & kFourCodes, a & kBits);
    flags |= a;
  }
  return flags & kFlags;
}

/// The same for symbols that all are in the table of pairs. Eight of them mostly fit a word.
template <class Symbol>
inline uint64_t encode_in_pairs(const EncodeTable& table, const Symbol* symbols, size_t n,
                                CodeWriter& writer) {
  // As a number: nothing is there that a pointer to before the table could point to.
  const uintptr_t origin =
      reinterpret_cast<uintptr_t>(table.pairs) - table.first * (kPairStride + 1) * sizeof(uint64_t);
  const auto pair = [&](size_t i) {
    size_t entry;
    if constexpr (sizeof(Symbol) == 1) {
      static_assert(kPairStride == 256, "two symbols are read as one number");
      uint16_t both;
      memcpy(&both, symbols + i, sizeof both);
      entry = both;
    } else {
      entry = symbols[i] + symbols[i + 1] * kPairStride;
    }
    return *reinterpret_cast<const uint64_t*>(origin + entry * sizeof(uint64_t));
  };
  uint64_t flags = 0;
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint64_t a = pair(i), b = pair(i + 2), c = pair(i + 4), d = pair(i + 6);
    const uint64_t front_bits = a + b, back_bits = c + d, sum = front_bits + back_bits;
    const uint64_t front = joined(a, b) & kFourCodes, back = joined(c, d) & kFourCodes;
    flags |= sum;
    if ((sum & kBits) <= 56) {
      writer.put(front | back >> (front_bits & 63), sum & kBits);
    } else {
      writer.put(front, front_bits & kBits);
      writer.put(back, back_bits & kBits);
    }
  }
  return (flags & kFlags) | encode_singly(table.codes, symbols + i, n - i, writer);
}

/// Whether all symbols are in the table of pairs.
template <class Symbol>
inline bool in_pairs(const EncodeTable& table, const Symbol* symbols, size_t n) {
  const auto first = static_cast<Symbol>(table.first);
  Symbol any = 0;  // no early exit, so that it is done in vectors
  for (size_t i = 0; i < n; ++i) any |= static_cast<Symbol>(symbols[i] - first);
  return any < kPaired;
}

template <class Symbol>
inline size_t encode_runs(const EncodeTable& table, const Symbol* symbols, size_t stride, size_t runs,
                          size_t n, uint8_t* out, uint64_t* bit, uint32_t* run_bits, uint64_t* flags) {
  CodeWriter writer(out, *bit);
  *flags = 0;
  const bool all_paired = stride == n && in_pairs(table, symbols, runs * n);
  size_t run = 0;
  while (run < runs && *flags == 0) {
    const bool paired = all_paired || in_pairs(table, symbols, n);
    *flags =
        paired ? encode_in_pairs(table, symbols, n, writer) : encode_singly(table.codes, symbols, n, writer);
    run_bits[run++] = static_cast<uint32_t>(writer.bit() - *bit);
    *bit = writer.bit();
    symbols += stride;
  }
  return run;
}

}  // namespace
}  // namespace kvcodec::huffman_kernels
