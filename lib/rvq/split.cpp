#include "lib/rvq/split.hpp"

#include "lib/core/error.hpp"

namespace kvcodec {

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

namespace {

/// The first of the `count` neighbouring pairs whose errors have the largest sum.
size_t worst_band(std::span<const double> errors, size_t pairs, size_t count) {
  const auto error = [&](size_t pair) { return errors[pair] + errors[pair + pairs]; };
  size_t worst = 0;
  double largest = 0;
  for (size_t first = 0; first + count <= pairs; ++first) {
    double sum = 0;
    for (size_t pair = first; pair < first + count; ++pair) sum += error(pair);
    if (first == 0 || sum > largest) worst = first, largest = sum;
  }
  return worst;
}

}  // namespace

DimensionSplit split_dimensions(SplitBy by, std::span<const double> errors, size_t head_dim,
                                size_t high_pairs) {
  const size_t pairs = head_dim / 2;
  if (by == SplitBy::none) high_pairs = 0;
  if (high_pairs > pairs || (by == SplitBy::measured && errors.size() != head_dim))
    throw failed("{} of {} pairs by {} errors", high_pairs, pairs, errors.size());
  const size_t first = by == SplitBy::measured ? worst_band(errors, pairs, high_pairs) : 0;
  std::vector<bool> is_high(head_dim);
  for (size_t pair = first; pair < first + high_pairs; ++pair) is_high[pair] = is_high[pair + pairs] = true;
  DimensionSplit split;
  for (size_t j = 0; j < head_dim; ++j)
    (is_high[j] ? split.high : split.low).push_back(static_cast<uint32_t>(j));
  return split;
}

size_t paper_high_pairs(size_t head_dim) { return (head_dim / 2 * 3 + 4) / 8; }

}  // namespace kvcodec
