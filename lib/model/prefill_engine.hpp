// The interface of a device that computes the steps of a prefill; without one the CPU does. The CUDA implementation
// (cuda/prefill/prefill.hpp) gives the same results within rounding. LlamaModel::prefill decides the order of the steps
// and what is passed on, the same for all.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/model/llama.hpp"

namespace kvcodec {

/// Where a document's tokens lie.
struct DocumentPlace {
  size_t first = 0;      ///< batch row of its first token
  size_t tokens = 0;     ///< of the batch
  size_t past = 0;       ///< tokens before these
  size_t key_first = 0;  ///< row of its position 0 among keys and values
};

/// A prefill to be run: batch and options are checked, and outlive it.
struct PrefillPlan {
  const PrefillBatch* batch = nullptr;
  const PrefillOptions* options = nullptr;
  std::vector<DocumentPlace> documents;  ///< in order, covering all rows
  std::vector<size_t> positions;         ///< of each token of the batch, in its document
  std::vector<size_t> key_row;           ///< and its row among keys and values
  size_t key_rows = 0;                   ///< past and new tokens of all documents
  size_t longest = 0;                    ///< past and new tokens of the longest document
  size_t chunk = 0;                      ///< tokens per step, at most; not more than there are
  size_t logit_rows = 0;                 ///< logits that are made at a time, at most; 0: none here
};

/// Throws Error(bad_input) for a token id beyond the vocabulary, and Error(failed) for offsets that do not cover the
/// tokens.
void check_batch(const ModelConfig& config, const PrefillBatch& batch);

/// The plan of a batch that check_batch() has passed, except for logit_rows.
PrefillPlan plan_of(const PrefillBatch& batch, const PrefillOptions& options);

/// Keys and values of a document's past tokens in one layer: (past, key_width) and (past,
/// cached_value_width).
struct PastRows {
  MatrixView<float> keys, values;
};

/// One prefill under way. Steps are called in the order of the functions here, layer by layer and in each
/// layer chunk by chunk; what one throws ends the prefill.
class PrefillSteps {
 public:
  virtual ~PrefillSteps() = default;
  /// Sets the hidden states of all tokens.
  virtual void embed() = 0;
  /// Memory for the document's past keys and values of the present layer, valid until place_past(). Between
  /// the two calls the batch's PastCache fills it, and may itself use a device. Called for each layer and
  /// each document that has past tokens.
  virtual PastRows past_rows(size_t document) = 0;
  virtual void place_past(size_t document) = 0;
  /// Queries, keys and values of tokens [first, first + count), normalised and turned.
  virtual void project(int layer, size_t first, size_t count) = 0;
  /// Attention and the gated MLP: the hidden states after the layer.
  virtual void finish(int layer, size_t first, size_t count) = 0;
  /// What project() made of this chunk; valid until the next project().
  virtual LayerChunk projected(int layer, size_t first, size_t count) = 0;
  /// After all layers: logits of some tokens, count at most the plan's logit_rows; valid until the next call.
  virtual MatrixView<const float> logits(size_t first, size_t count) = 0;
  /// After all layers, last: what logits of all tokens are made of.
  virtual MatrixView<const float> hidden() = 0;
};

/// Has the batch's cache write what the documents have of one layer from it.
void read_past(PrefillSteps& steps, const PrefillPlan& plan, int layer);

/// Several threads may use an engine at a time, each for its own prefill. What it was made from outlives it.
/// It may decline: then the CPU does the work.
class PrefillEngine {
 public:
  /// For Engine::make. The weights must outlive the result. Its floats are lib's within rounding.
  using Factory = std::shared_ptr<PrefillEngine>(const LlamaWeights&);
  virtual ~PrefillEngine() = default;
  /// nullptr: declined, as prefills with an AttentionMethod are.
  virtual std::unique_ptr<PrefillSteps> start(const PrefillPlan& plan) = 0;
  /// As LlamaModel::logits; shapes are checked, and there is an output matrix. False: declined, with nothing
  /// written.
  virtual bool logits(MatrixView<const float> hidden, MatrixView<float> out) = 0;
};

}  // namespace kvcodec
