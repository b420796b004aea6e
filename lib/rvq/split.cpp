#include "lib/rvq/split.hpp"

#include <algorithm>
#include <numeric>

#include "lib/core/error.hpp"

namespace kvcodec {

SplitBy split_from_name(std::string_view name) {
  if (name == "measured") return SplitBy::measured;
  if (name == "rope") return SplitBy::rope;
  if (name == "none") return SplitBy::none;
  throw usage_error("'{}' is no way to split dimensions; there are measured, rope, none", name);
}

void DimensionSplit::check() const {
  std::vector<bool> seen(head_dim());
  for (const auto* part : {&low, &high}) {
    for (size_t i = 0; i < part->size(); ++i) {
      const uint32_t dimension = (*part)[i];
      if (dimension >= seen.size() || seen[dimension] || (i > 0 && dimension <= (*part)[i - 1]))
        throw bad_input("dimension {} of {} is out of place in the split", dimension, seen.size());
      seen[dimension] = true;
    }
  }
}

DimensionSplit split_dimensions(SplitBy by, std::span<const double> errors, size_t head_dim,
                                size_t high_pairs) {
  const size_t pairs = head_dim / 2;
  if (by == SplitBy::none) high_pairs = 0;
  if (high_pairs > pairs || (by == SplitBy::measured && errors.size() != head_dim))
    throw failed("{} of {} pairs by {} errors", high_pairs, pairs, errors.size());
  std::vector<size_t> order(pairs);
  std::iota(order.begin(), order.end(), size_t{0});  // pair 0 turns fastest
  if (by == SplitBy::measured)
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
      return errors[a] + errors[a + pairs] > errors[b] + errors[b + pairs];
    });
  std::vector<bool> is_high(head_dim);
  for (size_t i = 0; i < high_pairs; ++i) is_high[order[i]] = is_high[order[i] + pairs] = true;
  DimensionSplit split;
  for (size_t j = 0; j < head_dim; ++j)
    (is_high[j] ? split.high : split.low).push_back(static_cast<uint32_t>(j));
  return split;
}

size_t paper_high_pairs(size_t head_dim) { return (head_dim / 2 * 3 + 4) / 8; }

}  // namespace kvcodec
