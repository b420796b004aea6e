// The inner loops of Huffman coding once per instruction set, per lib/core/cpu.hpp: portable code in scalar,
// the same code with BMI2's shifts in avx2, and runs side by side in avx512_vbmi. Inside lib/entropy only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::huffman_kernels {

/// Bits of a decoding table's window. Small, where the book allows: 16 KiB of table, which leaves room in a
/// first-level cache, and five look-ups from the 57 bits that one load gives; large: 32 KiB and four.
inline constexpr unsigned kSmallWindow = 11, kLargeWindow = 12;

/// Decoding table: one entry per value of the next `window` bits, holding all symbols whose codes lie
/// entirely within them, but no more than fit: 6 symbols of one byte or 3 of two.
///   bits  0..5   bits of these symbols together, 1..window
///   bits  8..15  number of symbols, 1..6 or 1..3
///   bits 16..63  the symbols, the first one highest
/// Symbols are written downwards, from higher addresses to lower ones: an entry is stored as it is, and what
/// lies below its symbols is overwritten by the next one.
struct DecodeTable {
  const uint64_t* entries;
  unsigned window;  ///< kSmallWindow or kLargeWindow
};
inline constexpr size_t kBytesPerEntry = 6;

/// Runs that are decoded side by side, so that the processor has independent work while a look-up waits.
inline constexpr size_t kLanes = 8;

/// Symbols that may be written below those asked for: a round of five look-ups, and what its last store holds
/// besides symbols.
inline constexpr size_t kDecodeSlack = 5 * kBytesPerEntry + 8;

/// n symbols from bit `bit` of the input on, symbol i to end[-1 - i]; there is room for n + kDecodeSlack. On
/// return `bit` stands behind the first `decoded` of them, those of whole look-ups: fewer than kBytesPerEntry
/// are missing to n, and they too are there.
template <class Symbol>
struct Lane {
  uint64_t bit;
  Symbol* end;
  size_t decoded;
};

/// Where lanes will be copied to: lane k to `to` + k * apart bytes. Those cache lines are fetched meanwhile.
struct Target {
  const void* to;
  size_t apart;
};

/// Encoding table. An entry holds the code of one symbol, or those of two one behind the other, from bit 63
/// downwards, their bits in bits 0..6, and one of these flags where it applies. Up to four entries are added
/// up, so a flag is the lowest of three bits, and up to 96 bits must fit.
struct EncodeTable {
  const uint64_t* codes;  ///< by symbol
  /// By two symbols of first..first + kPaired - 1: entry (s0 - first) + (s1 - first) * kPaired is s0, then
  /// s1.
  const uint64_t* pairs;
  size_t first;
};
inline constexpr size_t kPaired = 64, kPairStride = 256;
inline constexpr uint64_t kIsEscape = uint64_t{1} << 8;  ///< the escape is among them
inline constexpr uint64_t kNoCode = uint64_t{1} << 11;   ///< a symbol without a code is among them
/// Bytes that may be written behind the last bit.
inline constexpr size_t kEncodeSlack = 8;

/// The functions for symbols of one byte or two.
template <class Symbol>
struct Table {
  /// Decode n >= 1 symbols in each of kLanes lanes, or in one. They read nothing outside in[0, in_bytes),
  /// in_bytes >= 8; where codes run on behind the end, zero bits follow.
  void (*decode_lanes)(const DecodeTable& table, const uint8_t* in, size_t in_bytes, size_t n, Target target,
                       Lane<Symbol>* lanes);
  void (*decode_lane)(const DecodeTable& table, const uint8_t* in, size_t in_bytes, size_t n, Target target,
                      Lane<Symbol>* lane);
  /// Copies what a lane holds, symbol i in end[-1 - i], to rows of n symbols to_stride apart, and says
  /// whether `wanted` is among them.
  bool (*copy_and_find)(const Symbol* end, size_t rows, size_t n, Symbol wanted, Symbol* to,
                        size_t to_stride);
  /// Writes runs of n symbols, `stride` apart, from bit *bit of out on (the bits before it in its byte
  /// stay), up to and including the first run with a flag; returns how many. *bit moves behind them,
  /// run_bits[i] becomes the bits of run i, and *flags is not 0 if the last run has the escape or a symbol
  /// without a code. All symbols have an entry in table.codes.
  size_t (*encode)(const EncodeTable& table, const Symbol* symbols, size_t stride, size_t runs, size_t n,
                   uint8_t* out, uint64_t* bit, uint32_t* run_bits, uint64_t* flags);
};

namespace scalar {
template <class Symbol>
const Table<Symbol>& table();
}
KVCODEC_WIDE_VARIANT(avx2, scalar, template <class Symbol> const Table<Symbol>& table();)

/// A code book small enough for registers, to decode sets of kSideBySide runs, one symbol of each run at a
/// time. What starts with a code of at most kShortBits bits is looked up by its first kShortBits bits; longer
/// codes, which must be among the last kEntries values of the window, by the low 7 bits of the window.
struct SideBySideTable {
  static constexpr size_t kEntries = 128;
  unsigned window;                  ///< kSmallWindow or kLargeWindow
  size_t batch;                     ///< symbols decoded between two loads of 57 bits, at most 255 / window
  uint8_t short_lengths[kEntries];  ///< 255 where a longer code starts
  uint8_t short_symbols[kEntries];
  uint8_t long_lengths[kEntries];  ///< nowhere less than a short one
  uint8_t long_symbols[kEntries];
};
inline constexpr unsigned kShortBits = 7;
inline constexpr size_t kSideBySide = 64;
inline constexpr size_t kMostSets = 2;          ///< that are decoded at once
inline constexpr size_t kSideBySideInput = 16;  ///< bytes of input there must be

/// Where decode_side_by_side has what belongs to a run: the order that its registers take.
constexpr size_t side_by_side_place(size_t run) {
  const size_t in_set = run % kSideBySide;
  return run - in_set + in_set % 8 * 8 + in_set / 8;
}

/// Where symbols of runs decoded side by side go: symbol i of run r of set s to
/// to[i * symbol_stride + s * set_stride + r].
struct SideBySideOut {
  uint8_t* to;
  size_t symbol_stride, set_stride;
};

struct SideBySideKernels {
  /// Decodes n symbols in each of the runs of `sets` sets (1 or 2). Reads nothing outside in[0, in_bytes),
  /// kSideBySideInput <= in_bytes < 2^28; where codes run on behind the end, zero bits follow. Of run r of
  /// set s,
  ///   bit[side_by_side_place(64s + r)] < 2^31 is where it starts, and on return where it ends;
  ///   the place of `out` its symbols;
  ///   largest[64s + r] its largest symbol.
  void (*decode)(const SideBySideTable& table, const uint8_t* in, size_t in_bytes, size_t sets, size_t n,
                 uint32_t* bit, SideBySideOut out, uint8_t* largest);
  /// Copies a set's symbols, run r to to[r * to_stride]...; reads whole tiles of 64 symbols of all runs.
  void (*copy)(const uint8_t* symbols, size_t n, uint8_t* to, size_t to_stride);
};

/// Null in scalar: without permutations of bytes nothing is gained.
namespace scalar {
const SideBySideKernels* side_by_side();
}
KVCODEC_WIDE_VARIANT(avx512_vbmi, scalar, const SideBySideKernels* side_by_side();)

}  // namespace kvcodec::huffman_kernels
