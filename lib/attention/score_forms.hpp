// The changes that a model makes to scores of attention before the softmax, besides their scale, which its queries have, layer by layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/attention/attention.hpp"

namespace kvcodec {

struct ScoreForms {
  bool known = false;  ///< if it is not, scores are taken as they are
  float cap = 0;       ///< ScoreForm::cap
  std::vector<uint64_t> windows =
      {};  ///< tokens that a token of each layer sees, itself included, 0: all; empty: all in all layers
  std::vector<float> sinks = {};  ///< ScoreForm::sinks of all query heads, layer by layer; or empty
  size_t q_heads = 0;             ///< of a layer

  uint64_t window(int layer) const { return windows.empty() ? 0 : windows[static_cast<size_t>(layer)]; }
  /// The first of a document's tokens that a query of the layer sees, of those at these positions, which rise; position: the query's.
  uint64_t first_seen(int layer, std::span<const uint64_t> positions, uint64_t position) const {
    if (window(layer) == 0) return 0;
    const auto from =
        std::ranges::lower_bound(positions, position + 1 - std::min(window(layer), position + 1));
    return static_cast<uint64_t>(from - positions.begin());
  }
  /// Form of the scores of a layer. This outlives it.
  ScoreForm of(int layer) const;
  /// Sinks of some layers, one layer behind the other; empty if there are none.
  std::vector<float> sinks_of(std::span<const int> layers) const;
};

}  // namespace kvcodec
