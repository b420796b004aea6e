// Values that a coder's book has no symbol for: the escape stands in their place, the value itself is stored
// raw beside the codes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcodec {

/// Symbol `position` of row `row` (a run, a segment) was the escape and stands for `value`.
struct EscapedValue {
  uint32_t row = 0;
  uint32_t position = 0;
  uint32_t value = 0;
  bool operator==(const EscapedValue&) const = default;
};

/// Appends the places where the escape stands in a decoded row, with the value 0; returns how many.
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
