// The closed loop: the effect of a compressed cache on a model. A document's prefix is run through the model; its cache is replaced by
// decode(encode(cache)) under each of several settings; the model then continues with each of them, and is compared with the run that
// kept its cache (continuation.hpp). Or it is asked questions behind the prefix, and answers them with each of the caches (generation.hpp). Only
// data that goes through a codec is rounded.
//
// Some codecs fit tables to the first tokens of a new file (SurveyScope::file in lib/codec/codec.hpp). Here the prefixes of the first
// documents stand for that file. All documents use the resulting tables, and their bits are counted once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/core/progress.hpp"
#include "lib/metrics/next_token.hpp"
#include "lib/model/llama.hpp"
#include "lib/pipeline/coded_document.hpp"
#include "lib/pipeline/continuation.hpp"
#include "lib/pipeline/generation.hpp"
#include "lib/pipeline/selection.hpp"

namespace kvcodec {

struct LoopSetting {
  const Codec* codec = nullptr;  ///< outlives the loop
  DType dtype = DType::bf16;     ///< of the cache: the codec's input and output are rounded to it
  SelectionRule selection;       ///< the tokens that the continuation attends to; codes: by the codec's index
};

struct LoopOptions {
  /// 0: the continuation's own keys and values stay as they are. n: they are appended to the codes, n tokens at a time, and later
  /// tokens see the decoded values; 1 corresponds to decoding with a compressed cache.
  size_t stream = 0;
  size_t survey_documents = 16;  ///< documents whose prefixes stand for the new file
  size_t queries = 32;           ///< last tokens of a prefix that give queries to codecs and selections
  /// Bytes, 0: no bound. If the memory does not hold a document per thread, one is run at a time.
  uint64_t memory = 0;
  /// The tokens of the prefix that go through a codec in layers with windows. With trim, a codec must not group
  /// layers that keep different tokens.
  WindowLayers window_layers = WindowLayers::keep;
  /// How the prefix is read. Queries of codecs and selections are those of the model that read it whole.
  Joining joining = {};
  /// For selections; codecs and model have their own. nullptr: the CPU.
  Engine* engine = nullptr;
  /// The model's; for codecs that weigh tokens.
  ScoreForms scores = {};
};

/// One document under one setting.
struct LoopScore {
  PredictionSums sums;
  std::vector<uint8_t> right;      ///< of each judged token: 1 if it was the likeliest
  std::vector<float> divergences;  ///< of each judged token
  StoredBits stored;               ///< without the data that all documents share
  SelectionCount selected;         ///< of the continuation
  /// The tokens that the model wrote behind each question, always the likeliest token; of documents with questions, which have nothing judged.
  std::vector<std::vector<uint32_t>> answers = {};
};

struct LoopResult {
  LoopScore reference;  ///< of the run that kept its cache; its `stored` is empty
  std::vector<LoopScore> settings;
};

class ClosedLoop {
 public:
  /// model outlives this. Throws Error(usage) for settings that do not fit it.
  ClosedLoop(const LlamaModel& model, const std::vector<LoopSetting>& settings, const LoopOptions& options);
  ~ClosedLoop();

  /// Runs all documents, several at a time; their number does not change the results. Progress counts tokens that the model reads: those of
  /// the survey, of the documents, and of the continuations for each setting. Throws Error(failed) for documents without a token to judge,
  /// Error(usage) naming the bytes needed if a document or the survey does not fit the memory (by an estimate from the shapes), and the
  /// errors of model and codecs.
  std::vector<LoopResult> run(std::span<const LoopDocument> documents, const Progress& progress = {});

  /// Bits that a setting's documents share, once; after run().
  StoredBits shared(size_t setting) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec
