// Common parts of Huffman books and rANS models: an alphabet, symbols of it that have no code, and values
// without a symbol: the escape stands in their place, and the value itself is stored raw beside the codes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

inline constexpr size_t kMaxAlphabet = 65536;

/// Throws Error(kind) for an alphabet of more than kMaxAlphabet symbols, and for raw values of more than 32 bits.
void check_alphabet(size_t alphabet, unsigned escape_bits, ErrorKind kind);

/// The symbols to code, rarest first; equal ones in symbol order, so that a book is the same everywhere.
std::vector<size_t> by_weight(std::span<const uint64_t> counts, const std::vector<bool>& coded);
/// Leaves out the rarest of them until `bound` are left; returns how often the ones left out occur.
uint64_t keep_most_frequent(std::span<const uint64_t> counts, size_t bound, std::vector<bool>& coded);

/// A written book begins with its alphabet (17 bits) and its escape_bits (6 bits). Reading throws Error(bad_input) as check_alphabet.
void write_alphabet(BitWriter& out, size_t alphabet, unsigned escape_bits);
std::pair<size_t, unsigned> read_alphabet(BitReader& in);

/// Consecutive symbols without a code are a token and a number behind it: token `few` and 4 bits for 2 to 17 of them, the next token and 12
/// bits for more. Writing returns the number of `absent` symbols written, 0 if there are fewer than 2; reading takes the number.
size_t write_absent(BitWriter& out, size_t absent, unsigned few, unsigned token_bits);
size_t read_absent(BitReader& in, bool many);

/// Throws Error(failed) unless there are at least `escapes` raw values, and these fit escape_bits.
void check_raw(std::span<const uint32_t> raw, size_t escapes, unsigned escape_bits);

/// Symbol `position` of row `row` (a run, a segment) was the escape and stands for `value`.
struct EscapedValue {
  uint32_t row = 0;
  uint32_t position = 0;
  uint32_t value = 0;
  bool operator==(const EscapedValue&) const = default;
};

/// Appends the places of escapes in a decoded row, with the value 0; returns their number.
template <class Symbol>
size_t find_escapes(std::span<const Symbol> symbols, size_t row, Symbol escape,
                    std::vector<EscapedValue>& escaped) {
  constexpr size_t kPart = 64;  // looked at without early exit, in vectors; escapes are rare
  const size_t before = escaped.size();
  for (size_t first = 0; first < symbols.size(); first += kPart) {
    const auto part = symbols.subspan(first, std::min(kPart, symbols.size() - first));
    Symbol any = 0;
    for (const Symbol symbol : part) any |= static_cast<Symbol>(symbol == escape);
    if (any == 0) continue;
    for (size_t i = 0; i < part.size(); ++i)
      if (part[i] == escape)
        escaped.push_back({static_cast<uint32_t>(row), static_cast<uint32_t>(first + i), 0});
  }
  return escaped.size() - before;
}

}  // namespace kvcodec
