// The cost of an encoded cache, from the bytes stored (formats/FORMAT.md: the ledger). Pure arithmetic.
//
//   bits per value            8 * bytes / values
//   ratio                     2 * values / bytes           how many times smaller than 16-bit values
//   ratio with the books      2 * values / (bytes + book bytes)
//   break-even                the smallest number of tokens N at which the book has paid for itself:
//                             N * bytes / tokens + book bytes <= N * 2 * values / tokens
// Values are all key and value numbers of all tokens: tokens * layers * 2 * heads * head_dim where both sides
// are stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvcodec {

/// Bytes stored for one purpose: payload, ids, scales, tables, offsets, exempt tokens, file overhead.
struct RateLine {
  std::string name;
  uint64_t bytes = 0;
};

/// The ledger of an encoded cache.
struct RateLedger {
  uint64_t tokens = 0;
  uint64_t values = 0;
  std::vector<RateLine> lines;  ///< all stored data except the books
  uint64_t book_bytes = 0;      ///< 0 if the codec needs none

  /// All lines together. Throws Error(bad_input) if the sum does not fit 64 bits.
  uint64_t bytes() const;
};

struct Rate {
  std::vector<double> line_bits;  ///< bits per value of each line of the ledger
  double bits_per_value = 0;      ///< all lines
  double bits_per_value_with_book = 0;
  double ratio = 0;
  double ratio_with_book = 0;
  /// Tokens at which compressed + book = raw; 0 without a book; std::nullopt if no number of tokens is
  /// enough.
  std::optional<uint64_t> break_even_tokens;
};

/// 16-bit size over stored size; infinite if nothing is stored for some values, 1 for no values and no bytes.
double compression_ratio(uint64_t values, uint64_t bytes);

/// 8 * bytes / values; infinite if bytes are stored for no values, 0 for no values and no bytes.
double bits_per_value(uint64_t values, uint64_t bytes);

/// bits / values, for data that is not whole bytes; 0 without values, whatever is stored besides them: the
/// book of a setting under which nothing has been coded yet.
inline double bits_over_values(uint64_t values, uint64_t bits) {
  if (values == 0) return 0;
  return static_cast<double>(bits) / static_cast<double>(values);
}

/// The share of values saved if an id counts as one value, whatever its bits: 1 - ids / values (VQKV, eq.
/// 12, of quantized tokens). 0 without values.
inline double saved_by_ids(uint64_t values, uint64_t ids) {
  return values == 0 ? 0 : 1 - static_cast<double>(ids) / static_cast<double>(values);
}

Rate rate_of(const RateLedger& ledger);

/// The codec's own streams of one side, keys or values. Values that wait at 16 bits are left out of its rates: their
/// number depends on the length of the documents, not on the codec.
struct SideLedger {
  uint64_t values = 0;          ///< all numbers of that side
  uint64_t exempt_values = 0;   ///< of these, kept exactly
  uint64_t exempt_bytes = 0;    ///< of exempt values, in no line
  std::vector<RateLine> lines;  ///< bytes of the other values
  uint64_t ids = 0;             ///< entries of books that codes name
  uint64_t symbols = 0;         ///< quantized values, where the codec can count its symbols
  double symbol_bits = 0;       ///< their entropy, book by book

  uint64_t coded_values() const { return values - exempt_values; }
  /// All lines together. Throws Error(bad_input) if the sum does not fit 64 bits.
  uint64_t bytes() const;
  /// Bits per value that is not exempt.
  double bits_per_coded_value() const { return kvcodec::bits_per_value(coded_values(), bytes()); }
  /// Minimum bits per symbol of a coder that codes each symbol by itself; nothing without symbols.
  std::optional<double> entropy() const {
    if (symbols == 0) return {};
    return symbol_bits / static_cast<double>(symbols);
  }
};

}  // namespace kvcodec
