// Lists made of other lists.
#pragma once

#include <functional>
#include <iterator>
#include <vector>

namespace kvcodec {

/// A vector of what `function` makes of each item of a range, in order.
template <class To, class Range, class Function>
std::vector<To> mapped(const Range& range, const Function& function) {
  std::vector<To> results;
  results.reserve(std::size(range));
  for (const auto& item : range) results.emplace_back(std::invoke(function, item));
  return results;
}

}  // namespace kvcodec
