// The tokens that queries attend to: one rule for dumped queries, with measures of the choice (`kvcodec select` for one
// head of one document), and for those of a model that continues: at every step, for every layer and key/value head, the
// tokens are then chosen anew by a selector over all tokens that the step sees, which grow with the steps.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "lib/attention/selector.hpp"
#include "lib/cluster/cluster_index.hpp"
#include "lib/core/names.hpp"
#include "lib/core/view.hpp"
#include "lib/model/llama.hpp"
#include "lib/pipeline/continuation.hpp"

namespace kvcodec {

class Engine;

/// The method that scores tokens. all: none, every token is attended to; codes: the index in the codes, or products with their keys; signs:
/// the signs of such an index; clusters: semantic clusters; quest: Quest's bounds over pages of 16 tokens; oracle: the true products.
enum class SelectBy : uint8_t { all, codes, signs, clusters, quest, oracle };
constexpr auto names_of(SelectBy) {
  return std::to_array<std::string_view>({"all", "codes", "signs", "clusters", "quest", "oracle"});
}

struct SelectionRule {
  SelectBy by = SelectBy::all;
  uint64_t budget = 0;      ///< tokens per query, including those that are always chosen; 0: by ratio
  uint64_t newest = 0;      ///< newest tokens that are always chosen
  uint64_t first = 0;       ///< and first ones of the document
  uint64_t heavy = 0;       ///< and those that the last queries of the prompt attend to most (AttentionSums)
  uint64_t candidates = 1;  ///< ChoosingRule::candidates
  double mass = 0;          ///< ChoosingRule::mass
  double ratio = 0;         ///< budget as a share of the tokens a query sees; 0: all with a mass, else kRatio
  Share share = Share::weight;
  bool keeps_waiting = true;           ///< ChoosingRule::keeps_waiting
  std::vector<int> dense_layers = {};  ///< which attend to all tokens, whatever the budget

  static constexpr double kRatio = 0.075;  ///< the ratio of Self-Indexing KVCache

  bool is_dense(int layer) const { return std::ranges::find(dense_layers, layer) != dense_layers.end(); }
  /// Number of tokens to choose from `visible` ones.
  uint64_t tokens_of(uint64_t visible) const {
    if (budget > 0) return std::min(budget, visible);
    if (ratio == 0 && mass > 0) return visible;
    return std::min(visible, static_cast<uint64_t>(
                                 std::ceil((ratio > 0 ? ratio : kRatio) * static_cast<double>(visible))));
  }
  /// Number of newest tokens to choose whatever their score, if so many wait for a score.
  uint64_t newest_of(uint64_t waiting) const { return keeps_waiting ? std::max(newest, waiting) : newest; }
  ChoosingRule choosing() const {
    return {.share = share, .candidates = candidates, .keeps_waiting = keeps_waiting, .mass = mass};
  }
};

/// One head: its key/value rows and the queries of the query heads that share it, causal.
struct SelectionTask {
  const Selector* selector = nullptr;                  ///< over all tokens of the document
  MatrixView<const float> keys, values;                ///< the original ones: (tokens, dims)
  MatrixView<const float> stored_keys, stored_values;  ///< as decoded from the codes
  MatrixView<const float> queries;                     ///< (steps * per_step, dims), step by step
  size_t per_step = 1;                                 ///< query heads that share the head
  std::span<const uint64_t> visible;                   ///< of each step: it sees tokens [0, visible)
  /// For each step: the number of the newest visible tokens that wait for their cluster and have no score. Empty: none.
  std::span<const uint64_t> waiting = {};
  /// First tokens that are always available: always selected, and not counted as use of the cache.
  uint64_t sink = 0;
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
  /// For each of kCacheSteps, counted in tokens: those selected, and those of them that had to be fetched because the cache did not hold
  /// them. Tokens that are always available are not counted: the sink, and those that wait for their cluster.
  SelectionCache::Use cache[std::size(kCacheSteps)];

  void add(const SelectionQuality& other);
};

/// The tokens selected for each step (Share::each: for each step and query head, step by step), best first, and the
/// quality of the selection. Products of candidates are those with the stored keys. The selection is deterministic; steps
/// run in parallel. The caller handles dense layers.
struct Selections {
  std::vector<std::vector<Scored>> chosen;
  SelectionQuality quality;
};
Selections select_tokens(const SelectionTask& task, const SelectionRule& rule);

/// Methods that can choose while a model continues. Signs are sign codes of keys centred by the mean of the document's first cache,
/// which their codebooks are made from too; clusters are those of that cache, and then of whole batches of tokens.
inline constexpr SelectBy kStepSelectors[] = {SelectBy::oracle, SelectBy::quest, SelectBy::signs,
                                              SelectBy::clusters};

/// Attention over chosen tokens, of the documents of a batch.
class SelectedAttention final : public AttentionMethod {
 public:
  /// rules: one per document, none of them SelectBy::all. prefix: number of tokens of cache at the begin of each document, whatever it has
  /// later. The first call fits the mean and codebook of the sign codes, or the clusters, to the prefix and keeps them; later tokens get
  /// clusters as soon as they fill a batch. For each layer, the calls for a document must come in the order of its tokens. Throws
  /// Error(usage) for selectors that are not among kStepSelectors, dense layers that the model does not have, and models with sliding
  /// windows, capped scores or attention sinks.
  /// observed: the queries at the end of that prefix, which determine heavy tokens; outlives this. Without them, or
  /// with none, Error(usage) if a rule wants heavy tokens.
  /// engine: makes clusters, and chooses by them where many steps see the same ones; may be nullptr. The tokens are the same.
  SelectedAttention(const ModelConfig& config, std::vector<SelectionRule> rules, size_t prefix,
                    const Prefix* observed = nullptr, Engine* engine = nullptr);
  ~SelectedAttention() override;
  void attend(const AttentionRows& rows) override;

 private:
  struct Kept;
  void attend_head(const AttentionRows& rows, size_t head);
  std::span<const uint32_t> heavy_tokens(Kept& kept, int layer, size_t head, size_t count,
                                         MatrixView<const float> first) const;

  const ModelConfig& config_;
  std::vector<SelectionRule> rules_;
  size_t prefix_;
  const Prefix* observed_;
  Engine* engine_;
  std::vector<Kept> kept_;  // [document][layer][head]
};

}  // namespace kvcodec
