#include "lib/entropy/histogram.hpp"

#include <algorithm>
#include <cmath>

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
  if (values < kValues)
    if (const auto bad = std::ranges::find_if(symbols, [&](Symbol s) { return s >= values; });
        bad != symbols.end())
      throw bad_input("symbol {} at position {} is not below {}", *bad, bad - symbols.begin(), alphabet);
  const size_t tables = values <= kManyTables ? kTables : 1;
  std::vector<uint64_t> counts(alphabet), others((tables - 1) * values);
  size_t i = 0;
  for (; tables > 1 && i + kTables <= symbols.size(); i += kTables) {
    ++counts[symbols[i]];
    for (size_t t = 1; t < kTables; ++t) ++others[(t - 1) * values + symbols[i + t]];
  }
  for (; i < symbols.size(); ++i) ++counts[symbols[i]];
  for (size_t place = 0; place < others.size(); ++place) counts[place % values] += others[place];
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
