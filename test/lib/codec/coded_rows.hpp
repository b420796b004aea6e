// Shared by the tests of entropy coders: rows of random symbols with escapes, and the results of decoding coded ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/core/view.hpp"
#include "lib/entropy/escaped.hpp"
#include "lib/entropy/huffman.hpp"
#include "lib/entropy/rans.hpp"
#include "test/test.hpp"

namespace kvcodec::test {

/// Symbols 0..alphabet-1 with more or fewer of the later ones.
template <class Symbol>
std::vector<Symbol> random_symbols(size_t n, size_t alphabet, double decay, Rng& rng) {
  std::vector<Symbol> symbols(n);
  for (Symbol& symbol : symbols) {
    const double place = decay > 0 ? -std::log(1 - rng.uniform()) / decay : rng.uniform(0, double(alphabet));
    symbol = static_cast<Symbol>(std::min<uint64_t>(alphabet - 1, static_cast<uint64_t>(place)));
  }
  return symbols;
}

inline bool knows(const HuffmanBook& book, size_t symbol) { return book.length(symbol) > 0; }
inline bool knows(const RansModel& model, size_t symbol) { return model.frequency(symbol) > 0; }

/// Rows of symbols with their book (HuffmanBook or RansModel), and the input of an encoder.
template <class Symbol, class Book>
struct EscapedRows {
  Book book;
  Matrix<Symbol> symbols;     // escapes in place
  std::vector<uint32_t> raw;  // their values
  std::vector<EscapedValue> escaped;
};

/// The book is made from other symbols with a similar distribution.
template <class Symbol, class Book, class BookOptions>
EscapedRows<Symbol, Book> make_rows(size_t rows, size_t n, size_t alphabet, double decay, BookOptions options,
                                    Rng& rng) {
  std::vector<uint64_t> counts(alphabet);
  for (const Symbol symbol : random_symbols<Symbol>(2000, alphabet, decay, rng)) ++counts[symbol];
  const auto flat = random_symbols<Symbol>(rows * n, alphabet, decay, rng);
  if (options.escape_bits == 0)  // everything must be in the book then
    for (const Symbol symbol : flat) ++counts[symbol];
  EscapedRows<Symbol, Book> result{Book::from_counts(counts, options), Matrix<Symbol>(rows, n), {}, {}};
  std::copy(flat.begin(), flat.end(), result.symbols.data());
  for (size_t row = 0; row < rows; ++row)
    for (size_t i = 0; i < n; ++i)
      if (Symbol& symbol = result.symbols(row, i); !knows(result.book, symbol)) {
        symbol = static_cast<Symbol>(result.book.escape());
        const auto value = static_cast<uint32_t>(rng.next() & ((uint64_t{1} << options.escape_bits) - 1));
        result.raw.push_back(value);
        result.escaped.push_back({static_cast<uint32_t>(row), static_cast<uint32_t>(i), value});
      }
  return result;
}

template <class Symbol>
struct DecodedRows {
  std::vector<Symbol> symbols;
  std::vector<EscapedValue> escaped;
  bool operator==(const DecodedRows&) const = default;
};

/// The result of decode(bytes, out, escaped) for that many rows; std::nullopt if it refuses the bytes. It gets the bytes in a
/// separate vector, for the address sanitizer, and rows with a stride and a guard after them.
template <class Symbol, class Decode>
std::optional<DecodedRows<Symbol>> decode_rows(std::span<const uint8_t> bytes, size_t rows, size_t n,
                                               const Decode& decode) {
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  Matrix<Symbol> wide(rows, n + 1);
  std::fill_n(wide.data(), wide.size(), Symbol{77});
  DecodedRows<Symbol> result;
  try {
    decode(std::span<const uint8_t>(exact), wide.view().columns(0, n), result.escaped);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return std::nullopt;
  }
  for (size_t row = 0; row < rows; ++row) {
    result.symbols.insert(result.symbols.end(), wide.row(row).begin(), wide.row(row).begin() + ptrdiff_t(n));
    CHECK_EQ(wide(row, n), 77);
  }
  return result;
}

}  // namespace kvcodec::test
