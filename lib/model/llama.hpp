// The forward pass of decoder-only models, Llama's and those with similar parts (config.hpp), over whole documents:
// what a serving engine calls prefill. Documents may continue from existing keys and values (PastCache).
//
// It goes layer by layer, and within a layer by chunks of tokens, so that beside the hidden states only one
// layer's keys and values are held, however long the documents are; the weights of a layer are read once per
// chunk and converted to float block by block, unless they are kept in the form for products (compute_in).
// Documents are packed one behind the other: matrix products run over all their tokens at once, attention stays
// within each document, and positions count from 0 in each.
//
// All arithmetic is float, except for products with weights if bf16 is asked for (compute_in). The result is the same
// for any number of threads. It depends on the chunk size and on how documents are packed by rounding only (relative
// differences around 1e-6).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lib/core/names.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/view.hpp"
#include "lib/model/llama_weights.hpp"

namespace kvcodec {

/// Tokens that caches keep of layers whose tokens attend to a window of those before them.
enum class WindowLayers : uint8_t {
  keep,  ///< all tokens
  trim,  ///< of each document the last ones, as many as the window has
};
constexpr auto names_of(WindowLayers) { return std::to_array<std::string_view>({"keep", "trim"}); }

/// Number of a document's tokens that the layer keeps.
constexpr uint64_t tokens_kept(WindowLayers choice, const ModelConfig& config, int layer, uint64_t tokens) {
  const auto window = static_cast<uint64_t>(config.window[static_cast<size_t>(layer)]);
  return choice == WindowLayers::keep || window == 0 ? tokens : std::min(tokens, window);
}

/// Results of one layer for consecutive tokens, heads side by side; the views are valid during the
/// call only.
struct LayerChunk {
  int layer = 0;     ///< with queries alone where it uses keys and values of another (ModelConfig::source_of)
  size_t first = 0;  ///< place of the first row in PrefillBatch::tokens
  /// (n, num_kv_heads * head_dim) and (n, cached_value_width), that is without columns where values lie in keys; keys
  /// after the rotary embedding.
  MatrixView<const float> key, value;
  /// (n, num_q_heads * head_dim), after the rotary embedding; empty unless asked for. If a model does not scale
  /// scores by 1 / sqrt(head_dim), its queries are multiplied so that q k / sqrt(head_dim) is the score.
  MatrixView<const float> query;
  /// Keys and queries before the rotary embedding but after q/k normalisation; each empty unless asked for.
  MatrixView<const float> key_before_rope, query_before_rope;
};

/// Receives results as they come, on the calling thread: all layers ascending, and all tokens ascending in
/// each layer.
class PrefillSink {
 public:
  virtual ~PrefillSink() = default;
  virtual void layer(const LayerChunk& chunk) = 0;
  /// The state of a document in a layer that keeps no keys and values (DeltaLayers::state_size), after all its tokens or
  /// PrefillOptions::state_at of them. Called in the place of layer().
  virtual void state(int /*layer*/, size_t /*document*/, std::span<const float> /*state*/) {}
  /// Logits of tokens [first, first + logits.rows()), (n, vocabulary_size); called only if asked for.
  virtual void logits(size_t /*first*/, MatrixView<const float> /*logits*/) {}
  /// Input of the logits of all tokens (LlamaModel::logits): (tokens, hidden_size). Called once, at the
  /// end, only if asked for.
  virtual void hidden(MatrixView<const float> /*rows*/) {}
};

/// Keys and values of the tokens before those of a batch: a cache to continue from.
class PastCache {
 public:
  virtual ~PastCache() = default;
  /// Writes those of one layer, keys after the rotary embedding: (past tokens of the document, key_width) and (…,
  /// cached_value_width). Called once for each layer and document, layers ascending, on the calling thread.
  virtual void read(int layer, size_t document, MatrixView<float> keys, MatrixView<float> values) = 0;
  /// The state of a layer without keys and values after the past tokens, as PrefillSink::state() had it.
  virtual std::span<const float> state(int layer, size_t document) const;
};

/// Documents one behind the other.
struct PrefillBatch {
  std::span<const uint32_t> tokens;
  std::span<const uint64_t> offsets;  ///< document i is tokens [offsets[i], offsets[i + 1]), from 0 to all
  /// Tokens that each document has before these, whose keys and values `cache` has: its tokens stand at
  /// positions from past[i] on. Empty: none have any.
  std::span<const uint64_t> past = {};
  PastCache* cache = nullptr;
};

/// Attention of consecutive tokens of one document in one layer, for a method that does not use all
/// tokens before each.
struct AttentionRows {
  int layer = 0;
  int source = 0;  ///< the layer whose keys and values these are: ModelConfig::source_of(layer)
  size_t document = 0;
  size_t past = 0;                ///< tokens the document has from its cache
  size_t position = 0;            ///< of the first query
  MatrixView<const float> query;  ///< (n, num_q_heads * head_dim)
  /// (position + n, num_kv_heads * head_dim or value_dim): of the document's tokens; without the past ones if the method has these
  MatrixView<const float> key, value;
  MatrixView<float> out;              ///< (n, num_q_heads * value_dim)
  std::span<const float> sinks = {};  ///< each query head's score that counts beside keys' scores; or empty
};
class AttentionMethod {
 public:
  virtual ~AttentionMethod() = default;
  /// True if it has the keys and values of past tokens itself; PastCache::read is not called then.
  virtual bool has_past() const { return false; }
  /// Writes out. Query i, at position + i, may look at keys up to its own position.
  virtual void attend(const AttentionRows& rows) = 0;
};

enum class LogitRows : uint8_t {
  none,
  last,  ///< of the last token of each document
  all,
  later,  ///< none here, but the sink gets the input of LlamaModel::logits
};

struct PrefillOptions {
  /// Tokens per matrix product. From 1024 on the products run near the machine's peak; scratch memory grows
  /// with it.
  size_t chunk = 1024;
  bool queries = false;      ///< also hand out queries, which a device otherwise keeps
  bool before_rope = false;  ///< also hand out keys, and queries if asked for, before the rotary embedding
  int layers = 0;            ///< to run; 0 = all. Without logits the last one costs only its projections.
  LogitRows logits = LogitRows::none;
  /// With LogitRows::all: leaves out so many tokens at the start of each document.
  size_t logits_from = 0;
  /// Hands out states after so many tokens of each document, past ones aside; 0: after all.
  size_t state_at = 0;
  /// Computes attention; nullptr: over all tokens before each, or the layer's window of them.
  AttentionMethod* attention = nullptr;
};

/// Bytes that prefill allocates for a batch of `tokens` tokens whose longest document has `longest`, on
/// `threads` threads, with `past` tokens in the caches of all documents together (`longest` includes them).
/// Weights are not counted: they stay where they are.
uint64_t prefill_bytes(const ModelConfig& config, const PrefillOptions& options, uint64_t tokens,
                       uint64_t longest, int threads, uint64_t past = 0);

// The interface of a device that computes the steps of a prefill; without one the CPU does. The CUDA implementation
// (cuda/prefill/prefill.hpp) gives the same results within rounding. LlamaModel::prefill decides the order of the steps
// and which results are passed on, for all devices.

/// Place of a document's tokens.
struct DocumentPlace {
  size_t first = 0;      ///< batch row of its first token
  size_t tokens = 0;     ///< of the batch
  size_t past = 0;       ///< tokens before these
  size_t key_first = 0;  ///< row of its position `unread` among keys and values
  size_t unread =
      0;  ///< first past tokens whose keys and values are elsewhere: none or all (AttentionMethod::has_past)
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
/// layer chunk by chunk; an exception ends the prefill.
class PrefillSteps {
 public:
  virtual ~PrefillSteps() = default;
  /// Sets the hidden states of all tokens.
  virtual void embed() = 0;
  /// Memory for the document's past keys and values of the layer that is next, valid until place_past(). Between
  /// the two calls the batch's PastCache fills it, and may use a device itself. Called for each layer and
  /// each document that has past tokens.
  virtual PastRows past_rows(int layer, size_t document) = 0;
  virtual void place_past(size_t document) = 0;
  /// Queries, keys and values of tokens [first, first + count), normalised and turned.
  virtual void project(int layer, size_t first, size_t count) = 0;
  /// Attention and the gated MLP: the hidden states after the layer.
  virtual void finish(int layer, size_t first, size_t count) = 0;
  /// The result of project() for this chunk; valid until the next project().
  virtual LayerChunk projected(int layer, size_t first, size_t count) = 0;
  /// After the last chunk of a layer without keys and values: the document's state. Devices decline models with such layers.
  virtual std::span<const float> state(size_t /*document*/) const { return {}; }
  /// After all layers: logits of some tokens, count at most the plan's logit_rows; valid until the next call.
  virtual MatrixView<const float> logits(size_t first, size_t count) = 0;
  /// After all layers, last: the input of the logits of all tokens.
  virtual MatrixView<const float> hidden() = 0;
};

/// Calls the batch's cache to write the documents' past rows of one layer.
void read_past(PrefillSteps& steps, const PrefillPlan& plan, int layer);

/// Several threads may use an engine at a time, each for its own prefill. The weights it was made from
/// outlive it. It may decline: then the CPU does the work.
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

class LlamaModel {
 public:
  /// Looks up every tensor and checks its shape; the weights must outlive the model. Names are those of the
  /// configuration, with or without their prefix. Throws Error(bad_input) naming the tensor, what is there
  /// and what would be right.
  LlamaModel(const ModelConfig& config, const WeightSource& weights)
      : weights_(std::make_unique<LlamaWeights>(load_weights(config, weights))) {}

  const ModelConfig& config() const { return weights_->config; }
  /// Valid as long as the model lives, moved or not; for making an engine.
  const LlamaWeights& weights() const { return *weights_; }

  /// Leaves the arithmetic of prefill() and logits() from now on to `engine`, made for
  /// weights(); nullptr: to the CPU again. Prefills with an AttentionMethod stay with the CPU.
  void use(std::shared_ptr<PrefillEngine> engine) { engine_ = std::move(engine); }
  /// True if an engine does that arithmetic.
  bool uses_engine() const { return engine_ != nullptr; }

  /// Sets the arithmetic of prefill() and logits() on the CPU. Throws Error(usage) if this machine or build cannot do it.
  /// In bf16, weights, queries, keys, values and attention's weights, and the other factors of their products, are rounded
  /// to bf16; products are summed in float, and all else stays in float. `keep` says which weights are kept in the form for
  /// products (llama_weights.hpp): worth it for some thousand tokens. Results depend on it by rounding only.
  void compute_in(Compute compute, const KeepWeights& keep = {});

  /// Runs the batch. Uses parallel_for. Progress counts tokens, each layer for its share. Throws
  /// Error(bad_input) for a token id beyond the vocabulary, and for logits of a model without an output
  /// matrix. Values that overflow become infinities or NaNs; code that stores them checks.
  void prefill(const PrefillBatch& batch, const PrefillOptions& options, PrefillSink& sink,
               const Progress& progress = {}) const;

  /// Logits of rows that LogitRows::later handed out: (n, hidden_size) to (n, vocabulary_size). The packing
  /// of rows changes them by rounding only. Throws Error(bad_input) if the output matrix is missing.
  void logits(MatrixView<const float> hidden, MatrixView<float> out) const;

 private:
  std::unique_ptr<LlamaWeights> weights_;
  std::shared_ptr<PrefillEngine> engine_;
};

}  // namespace kvcodec
