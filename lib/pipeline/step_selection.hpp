// Attention that looks at few tokens while a model goes on: at every step, for every layer and key/value
// head, the tokens are chosen anew by a selector over all that the step sees, which grows with the steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/model/llama.hpp"
#include "lib/pipeline/selection.hpp"

namespace kvcodec {

/// Which tokens a document's steps attend to.
struct StepSelection {
  SelectBy by = SelectBy::all;  ///< or one of kStepSelectors
  uint64_t budget = 0;          ///< tokens per step and key/value head, the newest included
  uint64_t newest = 0;          ///< of these, the newest ones, always
  uint64_t first = 0;           ///< and the first ones of the document
  Share share = Share::max;
  std::vector<int> dense_layers = {};  ///< which attend to all tokens, whatever the budget
};

/// What can choose while a model goes on. Signs are sign codes of keys centred by the mean of the cache that the
/// document began with, whose codebooks are made from it too; clusters are those of that cache, and then of whole
/// batches of tokens.
inline constexpr SelectBy kStepSelectors[] = {SelectBy::oracle, SelectBy::quest, SelectBy::signs,
                                              SelectBy::clusters};

class Engine;

/// Attention over chosen tokens, of the documents of a batch.
class SelectedAttention final : public AttentionMethod {
 public:
  /// selections: one per document, none SelectBy::all. prefix: tokens of the cache that each document began with,
  /// however many it has by the time of a call. What signs make of these, they make at the first call
  /// and keep; so do clusters, which make clusters of later tokens as soon as these fill a batch. A
  /// document's calls for a layer come in the order of its tokens. Throws Error(usage) for selectors that are not among
  /// kStepSelectors, budgets of 0, dense layers that the model does not have, and models with sliding windows , capped
  /// scores or attention sinks.
  /// engine: makes clusters, and chooses by them where many steps see the same ones; may be nullptr. The
  /// tokens are the same.
  SelectedAttention(const ModelConfig& config, std::vector<StepSelection> selections, size_t prefix,
                    Engine* engine = nullptr);
  ~SelectedAttention() override;
  void attend(const AttentionRows& rows) override;

 private:
  const ModelConfig& config_;
  std::vector<StepSelection> selections_;
  size_t prefix_;
  Engine* engine_;
  struct Kept;
  std::vector<Kept> kept_;  // [document][layer][head]
};

}  // namespace kvcodec
