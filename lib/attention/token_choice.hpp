// Choosing tokens for queries: the one rule of all selectors, and the function by which a device chooses for many queries
// at a time, in place of a selector's scores.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/attention/row_source.hpp"
#include "lib/core/names.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/topk.hpp"

namespace kvcodec {

class ClusterIndex;  // lib/cluster/cluster_index.hpp

/// How query heads that share a key/value head agree on tokens: by the mean of the attention weights that their
/// scores are expected to become, by the largest score or by the mean score, or not at all: each has its own.
/// Scores of heads differ in scale, weights do not: by weights the same budget holds more of the attention.
enum class Share : uint8_t { weight, max, mean, each };
constexpr auto names_of(Share) { return std::to_array<std::string_view>({"weight", "max", "mean", "each"}); }

/// Queries that agree on one selection.
struct TokenChoice {
  MatrixView<const float> queries;  ///< (n, dims)
  uint64_t visible = 0;             ///< they see tokens [0, visible)
  uint64_t budget = 0;              ///< tokens to choose of these; all if there are fewer
  /// Tokens that are chosen whatever they score, while the budget lasts: the first `sink` tokens, then the
  /// last `newest` tokens, newest first (kept_anyway in lib/attention/cluster_selector.hpp), then those of
  /// `heavy`, in their order. `heavy` names no token twice.
  uint64_t newest = 0, sink = 0;
  std::span<const uint32_t> heavy = {};
  /// So many of the newest tokens have no score from the selector yet. Those of them that are not chosen
  /// anyway are scored by the products of queries and keys.
  uint64_t unscored = 0;
};

/// How tokens are chosen from scores.
struct ChoosingRule {
  Share share = Share::weight;
  /// The best tokens by score, `candidates` times the budget of them, are scored again by the products of
  /// queries and keys, which then decide. 1: the selector's scores decide alone.
  uint64_t candidates = 1;
  /// Whether tokens that a selector has no score for, those that wait for their cluster, are chosen anyway.
  bool keeps_waiting = true;
  /// Fewer tokens than the budget are chosen if they already have this share of the attention weights. The
  /// weights come from products where these were computed, otherwise from scores. 0: the whole budget is
  /// used. Only for Share::weight and Share::each.
  double mass = 0;
};

/// The tokens of one choice, best first by the score that decided, equal ones by id. With Share::weight the
/// returned scores are mean attention weights. scores: the selector's estimates of the products of queries
/// and keys, (n, at least visible); they are overwritten. keys: to compute products of candidates, of
/// unscored tokens, and of tokens that are chosen anyway. Throws Error(failed) for shapes that do not fit.
std::vector<Scored> choose_tokens(const TokenChoice& choice, const ChoosingRule& rule, const RowSource& keys,
                                  MatrixView<float> scores);

/// Chooses in place of a selector's scores: chosen[i] = what choose_tokens() gives for choices[i] without candidates
/// and mass, by Share::max if largest, else by Share::mean. Returns false if it declines; nothing is written then.
using TokenChooser = std::function<bool(std::span<const TokenChoice> choices, bool largest,
                                        std::span<std::vector<Scored>> chosen)>;
/// For Engine::make: selection by the clusters of this index of a document of so many tokens. The engine and the index
/// must outlive the function.
struct ClusterChoice {
  using Factory = TokenChooser(const ClusterIndex&, uint64_t tokens);
};

/// Whether a TokenChooser can choose by that rule.
inline bool can_choose_elsewhere(const ChoosingRule& rule) {
  return rule.share != Share::weight && rule.candidates <= 1 && rule.mass == 0 && rule.keeps_waiting;
}

}  // namespace kvcodec
