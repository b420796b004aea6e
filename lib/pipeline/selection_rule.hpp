// Which tokens queries attend to: one rule for queries that were dumped (selection.hpp) and for those of a model that
// goes on (step_selection.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/attention/token_choice.hpp"
#include "lib/core/names.hpp"

namespace kvcodec {

/// What scores tokens. all: nothing, every token is attended to; codes: the index in the codes, or products
/// with their keys; signs: the signs of such an index; clusters: semantic clusters; quest: Quest's bounds
/// over pages of 16 tokens; oracle: the true products.
enum class SelectBy : uint8_t { all, codes, signs, clusters, quest, oracle };
constexpr auto names_of(SelectBy) {
  return std::to_array<std::string_view>({"all", "codes", "signs", "clusters", "quest", "oracle"});
}

struct SelectionRule {
  SelectBy by = SelectBy::all;
  uint64_t budget = 0;  ///< tokens per query, those that are always chosen among them; 0: by ratio
  uint64_t newest = 0;  ///< newest tokens that are always chosen
  uint64_t first = 0;   ///< and first ones of the document
  uint64_t heavy = 0;   ///< and those that the last queries of the prompt attend to most (attention_sums.hpp)
  uint64_t candidates = 1;  ///< ChoosingRule::candidates
  double mass = 0;          ///< ChoosingRule::mass
  double ratio = 0;         ///< budget as a share of the tokens a query sees; 0: all with a mass, else kRatio
  Share share = Share::weight;
  bool keeps_waiting = true;           ///< ChoosingRule::keeps_waiting
  std::vector<int> dense_layers = {};  ///< which attend to all tokens, whatever the budget

  static constexpr double kRatio = 0.075;  ///< what Self-Indexing KVCache takes

  bool is_dense(int layer) const { return std::ranges::find(dense_layers, layer) != dense_layers.end(); }
  /// Tokens to choose where `visible` can be.
  uint64_t tokens_of(uint64_t visible) const {
    if (budget > 0) return std::min(budget, visible);
    if (ratio == 0 && mass > 0) return visible;
    return std::min(visible, static_cast<uint64_t>(
                                 std::ceil((ratio > 0 ? ratio : kRatio) * static_cast<double>(visible))));
  }
  /// Newest tokens to choose whatever they score, where so many wait for a score.
  uint64_t newest_of(uint64_t waiting) const { return keeps_waiting ? std::max(newest, waiting) : newest; }
  ChoosingRule choosing() const {
    return {.share = share, .candidates = candidates, .keeps_waiting = keeps_waiting, .mass = mass};
  }
};

}  // namespace kvcodec
