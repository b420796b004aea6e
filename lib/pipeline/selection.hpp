// The tokens that queries attend to: one rule for dumped queries, with measures of the choice (`kvcodec select` for one
// head of one document), and for those of a model that continues: at every step, for every layer and key/value head, the
// tokens are then chosen anew by a selector over all tokens that the step sees, which grow with the steps.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
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

/// Tokens that are attended to beside the budget. waiting: those that wait for their cluster, as in ClusterKV's released code;
/// generated: those behind the prompt, as in Self-Indexing KVCache ("always included in the attention computation").
enum class Beside : uint8_t { none, waiting, generated };
constexpr auto names_of(Beside) { return std::to_array<std::string_view>({"none", "waiting", "generated"}); }

struct SelectionRule {
  SelectBy by = SelectBy::all;
  uint64_t budget = 0;  ///< tokens per query, including those always chosen, not those beside; 0: by ratio
  uint64_t newest = 0;  ///< newest tokens that are always chosen
  uint64_t first = 0;   ///< and first ones of the document
  uint64_t heavy = 0;   ///< and those that the last queries of the prompt attend to most (AttentionSums)
  uint64_t candidates = 1;  ///< ChoosingRule::candidates
  double mass = 0;          ///< ChoosingRule::mass
  double ratio = 0;  ///< budget as a share of the tokens not beside it; 0: all with a mass, else kRatio
  Share share = Share::weight;
  Beside beside = Beside::none;
  std::vector<int> dense_layers = {};  ///< which attend to all tokens, whatever the budget
  ClusterOptions clusters = {};        ///< where a model continues

  static constexpr double kRatio = 0.075;  ///< the ratio of Self-Indexing KVCache

  bool is_dense(int layer) const { return std::ranges::find(dense_layers, layer) != dense_layers.end(); }
  /// Number of tokens to choose from `visible` ones.
  uint64_t tokens_of(uint64_t visible) const {
    if (budget > 0) return std::min(budget, visible);
    if (ratio == 0 && mass > 0) return visible;
    return std::min(visible, static_cast<uint64_t>(
                                 std::ceil((ratio > 0 ? ratio : kRatio) * static_cast<double>(visible))));
  }
  /// The newest tokens that are beside the budget, of a choice whose `unscored` ones wait, if so many were generated.
  uint64_t beside_of(const TokenChoice& choice, uint64_t generated) const {
    if (beside == Beside::none) return 0;
    return std::min(beside == Beside::waiting ? choice.unscored : generated, choice.visible - choice.from);
  }
  /// A choice by this rule. seen: what queries see, and tokens that the selector itself keeps or does not score yet.
  TokenChoice choice(TokenChoice seen, uint64_t generated) const {
    const uint64_t own = beside_of(seen, generated), most = tokens_of(seen.visible - seen.from - own);
    seen.budget = most + own;
    seen.newest = std::max(newest, own);
    // Sinks that no budget holds do not take the place of tokens beside it.
    seen.sink = std::min(std::max(first, seen.sink), seen.from + most);
    return seen;
  }
  ChoosingRule choosing() const { return {.share = share, .candidates = candidates, .mass = mass}; }
};

/// One head: its key/value rows and the queries of the query heads that share it, causal.
struct SelectionTask {
  const Selector* selector = nullptr;                  ///< over all tokens of the document
  MatrixView<const float> keys, values;                ///< the original ones: (tokens, dims)
  MatrixView<const float> stored_keys, stored_values;  ///< as decoded from the codes
  MatrixView<const float> queries;                     ///< (steps * per_step, dims), step by step
  size_t per_step = 1;                                 ///< query heads that share the head
  std::span<const uint64_t> visible;                   ///< of each step: it sees tokens [from, visible)
  std::span<const uint64_t> from = {};                 ///< empty: 0
  ScoreForm form = {};                                 ///< sinks: of the query heads that share the head
  /// For each step: the number of the newest visible tokens that wait for their cluster and have no score. Empty: none.
  std::span<const uint64_t> waiting = {};
  uint64_t prompt = UINT64_MAX;  ///< tokens from here on were generated
  /// First tokens that are always available: always selected, and not counted as use of the cache.
  uint64_t sink = 0;
  std::span<const uint32_t> heavy = {};  ///< tokens that are always selected, the first of them first
  TokenChooser chooser = {};  ///< chooses in place of `selector`, the same tokens and scores; or nothing
};

/// The measured values of R, the number of steps for which a SelectionCache keeps fetched tokens: 0 (it keeps
/// none), and 1 and 2 as in the ClusterKV paper.
inline constexpr uint64_t kCacheSteps[] = {0, 1, 2};

/// Numbers of tokens, summed over selections.
struct SelectionCount {
  uint64_t selections = 0;           ///< one per step, or per step and query head
  uint64_t tokens = 0, visible = 0;  ///< selected within the budget, and those they were chosen from
  uint64_t beside = 0;               ///< attended to beside the budget

  void add(const SelectionCount& other) {
    selections += other.selections;
    tokens += other.tokens;
    visible += other.visible;
    beside += other.beside;
  }
};

/// Sums over selections, to be averaged; a head's or many heads'.
struct SelectionQuality {
  SelectionCount count;
  uint64_t outputs = 0;  ///< one per step and query head
  double recall =
      0;  ///< of the true best tokens, as many as were selected within the budget; sum over selections
  double mass = 0;  ///< share of the attention weights of tokens, beside that of a sink; sum over outputs
  double stored_error = 0;  ///< output_error with keys and values of the codes; sum over outputs
  double output_error = 0;  ///< relative error of attention over the selected tokens; sum over outputs
  /// For each of kCacheSteps, counted in tokens: those selected, and those of them that had to be fetched because the cache did not hold
  /// them. Tokens that are always available are not counted: the sink, those that wait for their cluster, and those beside the budget.
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

/// The index in the codes of a key/value head, of the tokens that they hold; for SelectBy::codes.
using StoredIndex = std::function<std::unique_ptr<GrowingSelector>(size_t document, int layer, size_t head)>;

/// Attention over chosen tokens, of the documents of a batch. Layers with windows choose within these; weights have what the model
/// does with scores: caps and sinks. Latent keys and values are those of one head that all query heads share.
class SelectedAttention final : public AttentionMethod {
 public:
  /// rules: one per document, none of them SelectBy::all. prefix: number of tokens of cache at the begin of each document, whatever it has
  /// later. The first call fits the mean and codebook of the sign codes, or the clusters, to the prefix (in layers with a window to
  /// what that holds of it) and keeps them; later tokens get clusters as soon as they fill a batch. For each layer, the calls for a
  /// document must come in the order of its tokens. Throws Error(usage) for selectors that are not among kStepSelectors, but for codes
  /// if there is `stored`, and dense layers that the model does not have.
  /// observed: the queries at the end of that prefix, which determine heavy tokens; outlives this. Without them, or
  /// with none, Error(usage) if a rule wants heavy tokens.
  /// engine: makes clusters, and chooses by them where many steps see the same ones; may be nullptr. The tokens are the same.
  SelectedAttention(const ModelConfig& config, std::vector<SelectionRule> rules, size_t prefix,
                    const Prefix* observed = nullptr, Engine* engine = nullptr, StoredIndex stored = nullptr);
  ~SelectedAttention() override;
  void attend(const AttentionRows& rows) override;
  /// The choices made so far; dense layers make none.
  SelectionCount count(size_t document) const;

 private:
  struct Kept;
  /// model: of_layer() of the rows' layer.
  void attend_head(const ModelConfig& model, const AttentionRows& rows, size_t head);
  std::span<const uint32_t> heavy_tokens(const ModelConfig& model, Kept& kept, const AttentionRows& rows,
                                         size_t head, uint64_t origin) const;

  const ModelConfig& config_;
  std::vector<SelectionRule> rules_;
  size_t prefix_;
  const Prefix* observed_;
  Engine* engine_;
  StoredIndex stored_;
  std::vector<Kept> kept_;  // [document][layer][head]
};

}  // namespace kvcodec
