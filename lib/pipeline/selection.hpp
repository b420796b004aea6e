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
#include "lib/core/options.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// What chooses tokens: nothing; the index in the codes, or its signs alone; semantic clusters; Quest's bounds over
/// pages of 16 tokens; the true products.
enum class SelectBy : uint8_t { all, codes, signs, clusters, quest, oracle };
constexpr auto names_of(SelectBy) {
  return std::to_array<std::string_view>({"all", "codes", "signs", "clusters", "quest", "oracle"});
}

struct SelectionOptions final : Options {
  SelectBy by = SelectBy::codes;  ///< the index in the codes; of an index file the clusters
  Share share =
      Share::max;        ///< what Self-Indexing KVCache leaves open; the largest keeps what any head needs
  int64_t budget = 0;    ///< tokens per query; 0: by ratio
  double ratio = 0.075;  ///< the paper's 7.5 % of the tokens a query sees
  int64_t newest = 0;    ///< tokens before the query that are always selected, within the budget

  std::vector<OptionField> fields() override;
  void check() const override;

  /// Tokens to select where `visible` can be.
  uint64_t tokens_of(uint64_t visible) const;
};

/// The `budget` tokens of the highest scores among the first `visible`, best first, the first `sink` and the
/// `newest` of them always, by the rule of kept_anyway (lib/attention/cluster_selector.hpp) where the budget
/// is too small for both; scores: (n, at least visible), of query heads that agree by share (one row
/// for Share::each).
std::vector<Scored> choose_tokens(MatrixView<const float> scores, size_t visible, uint64_t budget,
                                  uint64_t sink, uint64_t newest, Share share);

/// One head: its key/value rows and the queries of the query heads that share it, causal.
struct SelectionTask {
  const Selector* selector = nullptr;                  ///< over all tokens of the document
  MatrixView<const float> keys, values;                ///< the original ones: (tokens, dims)
  MatrixView<const float> stored_keys, stored_values;  ///< as the codes give them back
  MatrixView<const float> queries;                     ///< (steps * per_step, dims), step by step
  size_t per_step = 1;                                 ///< query heads that share the head
  std::span<const uint64_t> visible;                   ///< of each step: it sees tokens [0, visible)
  /// Of each step: so many of the newest tokens it sees are always selected, as with `newest`, which counts
  /// where it is more: those that wait for their cluster. They come behind the sink where the budget is too
  /// small for both (kept_anyway of lib/attention/cluster_selector.hpp). Empty: none.
  std::span<const uint64_t> waiting = {};
  uint64_t sink = 0;          ///< first tokens, always selected and at hand: no use of the cache
  TokenChooser chooser = {};  ///< with the tokens and scores that `selector` would lead to; or nothing
};

/// Steps for which tokens stay at hand in the caches that are measured, R: none, and what the ClusterKV paper
/// measures.
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
  /// For each of kCacheSteps: tokens selected one by one, and those of them that no step before left. Without
  /// those that are always at hand: the sink and what waits.
  SelectionCache::Use cache[std::size(kCacheSteps)];

  void add(const SelectionQuality& other);
};

/// What was selected for each step (Share::each: for each step and query head, step by step), best first,
/// and how good it is. The selection is deterministic; steps run in parallel.
struct Selections {
  std::vector<std::vector<Scored>> chosen;
  SelectionQuality quality;
};
Selections select_tokens(const SelectionTask& task, const SelectionOptions& options);

}  // namespace kvcodec
