#include "lib/attention/score_forms.hpp"

#include "lib/core/checked.hpp"

namespace kvcodec {

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
