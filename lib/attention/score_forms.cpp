#include "lib/attention/score_forms.hpp"

#include <algorithm>

#include "lib/core/checked.hpp"

namespace kvcodec {

uint64_t ScoreForms::first_seen(int layer, std::span<const uint64_t> positions, uint64_t position) const {
  if (window(layer) == 0) return 0;
  const auto from = std::ranges::lower_bound(positions, position + 1 - std::min(window(layer), position + 1));
  return static_cast<uint64_t>(from - positions.begin());
}

ScoreForm ScoreForms::of(int layer) const {
  return ScoreForm{cap, sinks}.of_heads(as_size(layer) * q_heads, q_heads);
}

std::vector<float> ScoreForms::sinks_of(std::span<const int> layers) const {
  std::vector<float> all;
  for (const int layer : layers) {
    const auto own = of(layer).sinks;
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace kvcodec
