// Canonical Huffman codes of bounded length: the code book, encoding and decoding. Decoders accept any bytes: they
// read nothing outside the payload, and refuse runs whose bits do not end with their last symbol or its raw values.
//
// Alphabet. Symbols are 0..alphabet-1. A book may also have an escape: the symbol numbered `alphabet`, which stands for a value without a
// code in the book and is followed by that value itself in escape_bits() bits. The escape gets a code like the rarest symbol would, so it
// costs common symbols nothing, and later data never fails.
//
// Runs. Symbols are written in runs: the codes of the run's symbols one after the other, most significant bit first (the bit order of
// lib/core/bits.hpp), then the raw values of its escapes in order, so that the codes can be decoded without looking at any of them. Runs
// follow each other without gaps. A run is decoded alone when its first bit, its bits and its number of symbols are known.
//
// Lengths. At most 12 bits (kMaxCodeLength), so at most 4096 codes; alphabets may reach 65536 as long as no
// more symbols than that have a code of their own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/bits.hpp"
#include "lib/core/view.hpp"
#include "lib/entropy/escaped.hpp"

namespace kvcodec {

inline constexpr unsigned kMaxCodeLength = 12;

/// Lengths of a prefix code with the smallest sum of count * length among all codes without lengths above `limit`; 0 for symbols that get
/// no code (coded[i] == false). Package-merge (Larmore and Hirschberg, "A Fast Algorithm for Optimal Length-Limited Huffman Codes", J. ACM
/// 37(3), 1990). Coded symbols of count 0 get a code too. A single coded symbol gets length 1. Throws Error(failed) if limit is not in
/// 1..kMaxCodeLength, more than 2^limit symbols are coded, or the sum of counts is beyond 2^56.
std::vector<uint8_t> limited_code_lengths(std::span<const uint64_t> counts, const std::vector<bool>& coded,
                                          unsigned limit);

struct HuffmanOptions {
  /// Longest code, 1..12. The twelfth bit gains less than a thousandth on key/value caches.
  unsigned max_length = 11;
  /// Bits of the raw value behind an escape, 1..32; 0: the book has no escape.
  unsigned escape_bits = 0;
  /// Maximum number of codes, the escape included; rarer symbols use the escape. One byte can name 256 codes.
  size_t max_codes = 256;
};

class HuffmanBook {
 public:
  /// The best book for symbols that occur this often; counts.size() is the alphabet. Symbols of count 0 have no code. Throws Error(failed)
  /// for options out of range, or if symbols would have to be left out of a book without an escape.
  static HuffmanBook from_counts(std::span<const uint64_t> counts, const HuffmanOptions& options);

  /// Reads a book from the position of `in`. Throws Error(bad_input) for anything that write() does not write.
  static HuffmanBook read(BitReader& in);

  /// Writes the book: about 4 bits per symbol between the smallest and the largest that has a code.
  ///   17 bits  alphabet
  ///   6 bits   escape_bits
  ///   then the lengths of symbols 0..alphabet-1 (and of the escape, if there is one) as 4-bit tokens:
  ///   0..12    a length; 0 = no code
  ///   13 n     the length before it n + 3 times more (n: 4 bits)
  ///   14 n     n + 2 symbols without a code (n: 4 bits)
  ///   15 n     n + 18 symbols without a code (n: 12 bits)
  void write(BitWriter& out) const;

  size_t alphabet() const { return alphabet_; }
  unsigned escape_bits() const { return escape_bits_; }
  bool has_escape() const { return escape_bits_ > 0; }
  /// The escape's number; only where has_escape().
  size_t escape() const { return alphabet_; }

  /// Symbols that may have a code: the alphabet and the escape.
  size_t symbols() const { return lengths_.size(); }
  /// Bits of the symbol's code; 0 = it has none.
  unsigned length(size_t symbol) const { return lengths_[symbol]; }
  /// The code in the low length() bits.
  unsigned code(size_t symbol) const { return codes_[symbol]; }
  unsigned max_length() const { return max_length_; }
  /// Symbols that have a code, the escape included.
  size_t num_codes() const { return num_codes_; }

  /// The code at the head of every value of `window` bits, the next bit highest: 2^window of them; window >=
  /// max_length(), and there are codes.
  struct Code {
    uint16_t symbol = 0;
    uint8_t length = 0;  ///< bits, 1..window
  };
  std::vector<Code> codes_by_window(unsigned window) const;

  /// Bits of runs with these symbols (counts.size() == alphabet), raw values included: symbols without a code
  /// cost an escape. Throws Error(failed) if there are some and no escape.
  uint64_t coded_bits(std::span<const uint64_t> counts) const;

  bool operator==(const HuffmanBook&) const = default;

 private:
  HuffmanBook(size_t alphabet, unsigned escape_bits, std::vector<uint8_t> lengths);

  size_t alphabet_ = 0;
  unsigned escape_bits_ = 0;
  unsigned max_length_ = 0;
  size_t num_codes_ = 0;
  std::vector<uint8_t> lengths_;  // of 0..alphabet-1 and the escape
  std::vector<uint16_t> codes_;
};

/// Maximum number of symbols in one run: its bits, raw values included, are counted in 32 bits.
inline constexpr size_t kMaxRunSymbols = size_t{1} << 26;

class HuffmanEncoder {
 public:
  /// Throws Error(failed) if the book has more than 256 symbols, the escape included.
  explicit HuffmanEncoder(const HuffmanBook& book);

  /// Appends the rows of `symbols` (runs, n) as runs to `out`, from a whole byte on, and pads the last byte with zeros. Symbols are ones
  /// that have a code; in place of others stands the escape, and `raw` holds their values in order (as many as there are escapes, each
  /// below 2^escape_bits). run_bits[i] becomes the bits of run i. Throws Error(failed) for a symbol without a code, another number of raw
  /// values, raw values that are too wide, or runs of more than kMaxRunSymbols; `out` is then unspecified.
  void encode_runs(MatrixView<const uint8_t> symbols, std::span<const uint32_t> raw,
                   std::span<uint32_t> run_bits, std::vector<uint8_t>& out) const;

 private:
  static constexpr size_t kBytes = 256;

  unsigned max_length_, escape_bits_;
  size_t escape_;  // kBytes where there is none
  std::array<uint64_t, kBytes> codes_;
};

/// Decodes several symbols per look-up, and several runs side by side. Neighbouring runs of one call are decoded as if they were one if
/// their rows follow each other without gaps: damage that does not change their total number of bits is then not found.
class HuffmanDecoder {
 public:
  /// Throws Error(failed) if the book has more than 256 symbols, the escape included.
  explicit HuffmanDecoder(const HuffmanBook& book);

  /// Decodes consecutive runs of out.cols() symbols, the first one from bit first_bit of `payload` on, run i
  /// of run_bits[i] bits, into row i of out: (run_bits.size(), n). Escapes stand in out as the escape's
  /// number; their values are appended to `escaped` in order. Throws Error(bad_input) naming the run if the
  /// payload ends before the runs do, or for a run that is damaged; out and escaped are then unspecified.
  void decode_runs(std::span<const uint8_t> payload, uint64_t first_bit, std::span<const uint32_t> run_bits,
                   MatrixView<uint8_t> out, std::vector<EscapedValue>& escaped) const;

 private:
  struct Work;
  size_t decode_joined(Work& work, size_t per_lane) const;
  void decode_alone(Work& work, size_t run) const;
  bool has_escape(std::span<const uint8_t> symbols) const {
    if (!book_.has_escape()) return false;
    const auto escape = static_cast<uint8_t>(book_.escape());
    uint8_t any = 0;  // bytes and no early exit, so that it is done in vectors
    for (const uint8_t symbol : symbols) any |= static_cast<uint8_t>(symbol == escape);
    return any != 0;
  }

  HuffmanBook book_;
  std::vector<uint64_t> entries_;  // huffman.cpp
};

/// The table of huffman_step.hpp for a book: 2^kStepWindow entries. Throws Error(failed) if the book has no codes, or
/// more than 256 symbols.
std::vector<uint32_t> step_table(const HuffmanBook& book);

}  // namespace kvcodec
