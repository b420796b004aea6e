#include "lib/entropy/histogram.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

/// Counts in several tables by turns: equal neighbours would otherwise wait for each other's increment.
constexpr size_t kTables = 4;

/// Below this alphabet size the tables lie in the first-level cache together, beyond it one is better.
constexpr size_t kManyTables = 1024;

template <class Symbol>
std::vector<uint64_t> count(std::span<const Symbol> symbols, size_t alphabet) {
  constexpr size_t kValues = size_t{1} << (8 * sizeof(Symbol));
  const size_t values = std::min(alphabet, kValues);
  if (values < kValues) {
    Symbol largest = 0;
    for (const Symbol symbol : symbols) largest = std::max(largest, symbol);
    if (!symbols.empty() && largest >= values) {
      const auto bad = std::find_if(symbols.begin(), symbols.end(), [&](Symbol s) { return s >= values; });
      throw bad_input("symbol {} at position {} is not below {}", *bad, bad - symbols.begin(), alphabet);
    }
  }
  std::vector<uint64_t> counts(alphabet);
  const size_t tables = values <= kManyTables ? kTables : 1;
  // 32-bit counters, emptied before they can overflow.
  constexpr size_t kRound = size_t{1} << 31;
  std::vector<uint32_t> partial(tables * values);
  for (size_t first = 0; first < symbols.size(); first += kRound) {
    const auto round = symbols.subspan(first, std::min(kRound, symbols.size() - first));
    size_t i = 0;
    if (tables == kTables)
      for (; i + kTables <= round.size(); i += kTables)
        for (size_t t = 0; t < kTables; ++t) ++partial[t * values + round[i + t]];
    for (; i < round.size(); ++i) ++partial[round[i]];
    for (size_t t = 0; t < tables; ++t)
      for (size_t value = 0; value < values; ++value) counts[value] += partial[t * values + value];
    std::fill(partial.begin(), partial.end(), 0u);
  }
  return counts;
}

}  // namespace

std::vector<uint64_t> histogram(std::span<const uint8_t> symbols, size_t alphabet) {
  return count(symbols, alphabet);
}
std::vector<uint64_t> histogram(std::span<const uint16_t> symbols, size_t alphabet) {
  return count(symbols, alphabet);
}

double entropy_bits(std::span<const uint64_t> counts) {
  double total = 0, weighted = 0;
  for (const uint64_t count : counts) {
    if (count == 0) continue;
    const auto c = static_cast<double>(count);
    total += c;
    weighted += c * std::log2(c);
  }
  return total > 0 ? total * std::log2(total) - weighted : 0;
}

}  // namespace kvcodec
