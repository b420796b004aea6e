// Attention that looks at few tokens while a model goes on: at every step, for every layer and key/value
// head, the tokens are chosen anew by a selector over all that the step sees, which grows with the steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/model/llama.hpp"
#include "lib/pipeline/continuation.hpp"
#include "lib/pipeline/selection_rule.hpp"

namespace kvcodec {

/// What can choose while a model goes on. Signs are sign codes of keys centred by the mean of the cache that the
/// document began with, whose codebooks are made from it too; clusters are those of that cache, and then of whole
/// batches of tokens.
inline constexpr SelectBy kStepSelectors[] = {SelectBy::oracle, SelectBy::quest, SelectBy::signs,
                                              SelectBy::clusters};

class Engine;

/// Attention over chosen tokens, of the documents of a batch.
class SelectedAttention final : public AttentionMethod {
 public:
  /// rules: one per document, none of them SelectBy::all. prefix: how many tokens of cache each document
  /// began with, whatever it has later. The first call fits the mean and codebook of the sign codes, or the
  /// clusters, to the prefix and keeps them; later tokens get clusters as soon as they fill a batch. For each
  /// layer, the calls for a document must come in the order of its tokens. Throws Error(usage) for selectors
  /// that are not among kStepSelectors, dense layers that the model does not have, and models with sliding
  /// windows, capped scores or attention sinks.
  /// observed: the queries at the end of that prefix, which say what is heavy; outlives this. Without them, or with
  /// none, Error(usage) where a rule wants heavy tokens.
  /// engine: makes clusters, and chooses by them where many steps see the same ones; may be nullptr. The
  /// tokens are the same.
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
