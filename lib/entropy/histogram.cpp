#include "lib/entropy/histogram.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"

namespace kvcodec {

/// Counts in several tables by turns: equal neighbours would otherwise wait for each other's increment.
constexpr size_t kTables = 4;

std::vector<uint64_t> histogram(std::span<const uint8_t> symbols, size_t alphabet) {
  const size_t values = std::min(alphabet, size_t{256});
  if (values < 256)
    if (const auto bad = std::ranges::find_if(symbols, [&](uint8_t s) { return s >= values; });
        bad != symbols.end())
      throw bad_input("symbol {} at position {} is not below {}", *bad, bad - symbols.begin(), alphabet);
  std::vector<uint64_t> counts(alphabet), others((kTables - 1) * values);
  size_t i = 0;
  for (; i + kTables <= symbols.size(); i += kTables) {
    ++counts[symbols[i]];
    for (size_t t = 1; t < kTables; ++t) ++others[(t - 1) * values + symbols[i + t]];
  }
  for (; i < symbols.size(); ++i) ++counts[symbols[i]];
  for (size_t place = 0; place < others.size(); ++place) counts[place % values] += others[place];
  return counts;
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
