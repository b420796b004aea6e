// Canonical Huffman codes of bounded length: the code book. Encoding is in huffman_encoder.hpp, decoding in
// huffman_decoder.hpp.
//
// Alphabet. Symbols are 0..alphabet-1. A book may also have an escape: the symbol numbered `alphabet`, which
// stands for a value the book has no code for and is followed by that value itself in escape_bits() bits. The
// escape gets a code like the rarest symbol would, so what is common pays nothing for it, and data that comes
// later never fails.
//
// Runs. Symbols are written in runs: the codes of the run's symbols one after the other, most significant bit
// first (the bit order of lib/core/bits.hpp), then the raw values of its escapes in order, so that the codes
// can be decoded without looking at any of them. Runs follow each other without gaps. A run is decoded alone
// when its first bit, its bits and its number of symbols are known.
//
// Lengths. At most 12 bits (kMaxCodeLength), so at most 4096 codes; alphabets may reach 65536 as long as no
// more symbols than that have a code of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/bits.hpp"

namespace kvcodec {

inline constexpr unsigned kMaxCodeLength = 12;
inline constexpr size_t kMaxAlphabet = 65536;

/// The longest run whose bits can always be counted in 16 bits: every symbol may be an escape with a code of
/// kMaxCodeLength bits and a raw value of 32.
inline constexpr size_t kMaxRunOf16BitCount = 65535 / (kMaxCodeLength + 32);

/// Lengths of a prefix code with the smallest sum of count * length among all codes without lengths above
/// `limit`; 0 for symbols that are not to have a code (coded[i] == false). Package-merge (Larmore and
/// Hirschberg, "A Fast Algorithm for Optimal Length-Limited Huffman Codes", J. ACM 37(3), 1990). Coded
/// symbols of count 0 get a code too. A single coded symbol gets length 1. Throws Error(failed) if limit is
/// not in 1..kMaxCodeLength, more than 2^limit symbols are coded, or the counts sum up beyond 2^56.
std::vector<uint8_t> limited_code_lengths(std::span<const uint64_t> counts, const std::vector<bool>& coded,
                                          unsigned limit);

struct HuffmanOptions {
  /// Longest code, 1..12. The twelfth bit gains less than a thousandth on key/value caches.
  unsigned max_length = 11;
  /// Bits of the raw value behind an escape, 1..32; 0: the book has no escape.
  unsigned escape_bits = 0;
  /// Codes at most, the escape included; the rarest symbols beyond are left to the escape. 256 codes are what
  /// symbols of one byte can name.
  size_t max_codes = 256;
};

class HuffmanBook {
 public:
  /// The best book for symbols that occur this often; counts.size() is the alphabet. Symbols of count 0 have
  /// no code. Throws Error(failed) for options out of range, or if symbols would have to be left out of a
  /// book without an escape.
  static HuffmanBook from_counts(std::span<const uint64_t> counts, const HuffmanOptions& options);

  /// Reads a book from where `in` stands. Throws Error(bad_input) for anything that write() does not write.
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

  /// The code that stands at the head of every value of `window` bits, the next bit highest: 2^window of them;
  /// window >= max_length(), and there are codes.
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

}  // namespace kvcodec
