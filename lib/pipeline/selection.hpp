// Choosing tokens for queries, and how good the choice is: what `kvcodec select` does for one head of one
// document.
#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "lib/attention/selector.hpp"
#include "lib/attention/token_choice.hpp"
#include "lib/cluster/selection_cache.hpp"
#include "lib/core/view.hpp"
#include "lib/pipeline/selection_rule.hpp"

namespace kvcodec {

/// One head: its key/value rows and the queries of the query heads that share it, causal.
struct SelectionTask {
  const Selector* selector = nullptr;                  ///< over all tokens of the document
  MatrixView<const float> keys, values;                ///< the original ones: (tokens, dims)
  MatrixView<const float> stored_keys, stored_values;  ///< as the codes give them back
  MatrixView<const float> queries;                     ///< (steps * per_step, dims), step by step
  size_t per_step = 1;                                 ///< query heads that share the head
  std::span<const uint64_t> visible;                   ///< of each step: it sees tokens [0, visible)
  /// For each step: how many of the newest tokens that it sees wait for their cluster and have no score. Empty: none.
  std::span<const uint64_t> waiting = {};
  uint64_t sink =
      0;  ///< first tokens that are always at hand: always selected, and not counted as use of the cache
  std::span<const uint32_t> heavy = {};  ///< tokens that are always selected, the first of them first
  TokenChooser chooser = {};  ///< chooses in place of `selector`, the same tokens and scores; or nothing
};

/// The measured values of R, the number of steps for which a SelectionCache keeps fetched tokens: 0 (it keeps
/// none), and 1 and 2 as in the ClusterKV paper.
inline constexpr uint64_t kCacheSteps[] = {0, 1, 2};

/// Sums over selections, to be averaged; a head's or many heads'.
struct SelectionQuality {
  uint64_t selections = 0;           ///< one per step, or per step and query head
  uint64_t outputs = 0;              ///< one per step and query head
  uint64_t tokens = 0, visible = 0;  ///< selected, and those they were chosen from
  double recall = 0;        ///< of the true best tokens, as many as were selected; sum over selections
  double mass = 0;          ///< share of the attention weights; sum over outputs
  double stored_error = 0;  ///< the same with the keys and values of the codes; sum over outputs
  double output_error = 0;  ///< relative error of attention over the selected tokens; sum over outputs
  /// For each of kCacheSteps, counted in tokens: those selected, and those of them that had to be fetched
  /// because the cache did not hold them. Tokens that are always at hand are not counted: the sink, and those
  /// that wait for their cluster.
  SelectionCache::Use cache[std::size(kCacheSteps)];

  void add(const SelectionQuality& other);
};

/// What was selected for each step (Share::each: for each step and query head, step by step), best first,
/// and how good it is. Products of candidates are those with the stored keys. The selection is deterministic; steps run in
/// parallel. Whether a layer is dense is the caller's business.
struct Selections {
  std::vector<std::vector<Scored>> chosen;
  SelectionQuality quality;
};
Selections select_tokens(const SelectionTask& task, const SelectionRule& rule);

}  // namespace kvcodec
