// A document's continuation after a cache that differs from the model's own: the model reads the prefix once; it then continues over the
// rest of the document, token by token as in the text (teacher forcing), after any number of other caches, and its next-token distributions
// are compared with those of the run that kept its own. The closed loop (closed_loop.hpp) and the sensitivities of layers (sensitivity.hpp)
// use such continuations.
//
// Continuations that run together are one batch of the model: other batches change a result by rounding only (lib/model/llama.hpp). The
// first token of the continuation is given; the predictions of all later tokens, which have seen the cache, are judged.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/view.hpp"
#include "lib/metrics/next_token.hpp"
#include "lib/model/llama.hpp"

namespace kvcodec {

/// A question behind a document's prefix, which the model answers in its own words.
struct LoopQuestion {
  std::vector<uint32_t> tokens;  ///< at least one
  size_t written = 0;            ///< tokens of the answer, at most; at least one
  /// True for an answer that is whole; called from several threads.
  std::function<bool(std::span<const uint32_t>)> whole;
};

struct LoopDocument {
  std::vector<uint32_t> tokens;              ///< at least prefix + 2; with questions the prefix alone
  size_t prefix = 0;                         ///< tokens whose cache is replaced, at least 1
  std::vector<LoopQuestion> questions = {};  ///< each is asked by itself

  /// Tokens, with the longest question and its answer.
  size_t size() const;
};
/// Throws Error(failed) for a document without a token to judge.
void check_document(const LoopDocument& document);

/// Keys and values of consecutive tokens, layer by layer: (tokens, key_width) and (tokens, cached_value_width), or without columns.
struct LayerRows {
  std::vector<Matrix<float>> keys, values;

  LayerRows(const ModelConfig& config, size_t tokens);
  const std::vector<Matrix<float>>& of(Side side) const { return side == Side::key ? keys : values; }
  std::vector<Matrix<float>>& of(Side side) { return side == Side::key ? keys : values; }
};

/// The model's state after a prefix: its cache, and queries of its last tokens.
struct Prefix {
  LayerRows rows;
  std::vector<uint64_t> query_tokens;
  std::vector<Matrix<float>> queries;  ///< per layer: (query_tokens.size(), num_q_heads * head_dim)
  /// The states of layers without keys and values (DeltaLayers); codecs do not see them.
  std::vector<std::vector<float>> states = {};
};

/// The cache of a document's prefix alone; queries: number of its last tokens whose queries are kept. Progress counts tokens.
Prefix run_prefix(const LlamaModel& model, const LoopDocument& document, size_t queries,
                  const Progress& progress = {});

/// One judged position.
struct Judged {
  double surprise = 0, divergence = 0;
  bool same_best = false, right = false;
};

PredictionSums sums_of(std::span<const Judged> judged);

/// Maximum number of tokens of continuations that run together. It is fixed, because other batches can change the last bit of a value.
inline constexpr size_t kContinuedTogether = 16384;

/// The run that kept its cache, and continuations of its prefix with other caches.
class ReferenceRun {
 public:
  /// Runs the document; queries, progress: as in run_prefix(). Model and document outlive this. Throws the model's errors.
  ReferenceRun(const LlamaModel& model, const LoopDocument& document, size_t queries,
               const Progress& progress = {});

  const Prefix& prefix() const { return prefix_; }
  /// Number of judged positions.
  size_t judged() const { return inputs_.size(); }
  /// The run's own predictions at the positions that go_on() or judge_itself() has judged so far.
  std::span<const Judged> own() const { return own_; }
  /// Judges all positions of the run itself.
  void judge_itself() { judge(0, judged(), {}, {}); }

  /// Number of continuations that may run together; at least 1.
  size_t together() const { return std::max<size_t>(1, kContinuedTogether / judged()); }

  /// Some continuations, which run together.
  struct Batch {
    size_t first = 0, count = 0;  ///< the tokens of the continuation that run
    PastCache& cache;             ///< holds all tokens before them, for judged.size() documents
    /// Judgements of predictions: judged[i], of judged() positions, for document i.
    std::span<std::vector<Judged>* const> judged;
    std::span<LayerRows> rows = {};  ///< output for their keys and values, one for each document; or empty
    AttentionMethod* attention = nullptr;  ///< as in PrefillOptions
  };
  /// Runs and judges a batch. Progress counts tokens of all continuations.
  void go_on(const Batch& batch, const Progress& progress = {});

  /// Approximate bytes of a run and this number of continuations of it, beside the model's weights and the data of `cache`.
  static uint64_t bytes(const ModelConfig& config, const LoopDocument& document, size_t continuations);

 private:
  class Sink;
  void judge(size_t first, size_t count, MatrixView<const float> hidden,
             std::span<std::vector<Judged>* const> judged);

  const LlamaModel& model_;
  std::span<const uint32_t> inputs_, targets_;  // (judged)
  size_t past_;
  Prefix prefix_;
  Matrix<float> hidden_;  // (judged, hidden_size)
  std::vector<Judged> own_;
};

}  // namespace kvcodec
