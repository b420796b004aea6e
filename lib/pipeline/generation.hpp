// Text that a model writes behind a cache: it reads a prompt, then one token at a time, each chosen from its own predictions. Keys and values
// of what it reads are added to the cache as the model computes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/options.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/rng.hpp"
#include "lib/model/llama.hpp"
#include "lib/model/rope.hpp"
#include "lib/pipeline/coded_document.hpp"
#include "lib/pipeline/continuation.hpp"

namespace kvcodec {

/// How the next token is chosen: the likeliest, or drawn from softmax(logits / temperature) over the likeliest `top_k` tokens, and of these
/// over the smallest set of the likeliest whose probabilities add up to `top_p` (Holtzman et al., "The Curious Case of Neural Text
/// Degeneration", 2020, section 3.1).
struct Sampling final : Options {
  double temperature = 0;  ///< 0: the likeliest token, the first of equals
  int64_t top_k = 0;       ///< 0: of all tokens
  double top_p = 1;

  std::vector<OptionField> fields() override {
    return {
        {"temperature", "draw tokens from the distribution at this temperature; 0: always take the likeliest",
         &temperature, 0, 100},
        {"top-k", "draw from the N likeliest tokens alone; 0: from all", &top_k, 0},
        {"top-p", "draw from the likeliest tokens whose probabilities add up to X", &top_p, 1e-6, 1}};
  }
};

/// The number of the chosen token. Uses rng only for a temperature above 0. Throws Error(failed) for logits that are not finite.
uint32_t choose_token(std::span<const float> logits, const Sampling& sampling, Rng& rng);

/// A document that grows by what a model reads.
class GrowingDocument {
 public:
  /// room: tokens that it holds at most, each of 4 * num_layers * cache_width bytes; memory grows by doubling. The model outlives it.
  GrowingDocument(const LlamaModel& model, size_t room)
      : model_(model), rows_(model.config(), 0), room_(room) {}
  /// Behind codes, which stay codes and grow by what is read: attention multiplies with them. They outlive this, and hold each layer by
  /// itself (CodedDocument::multiplies), or Error(usage) is thrown.
  GrowingDocument(const LlamaModel& model, size_t room, CodedDocument& codes)
      : model_(model), codes_(&codes), rows_(model.config(), 0), room_(room), tokens_(codes.tokens()) {
    if (!codes.multiplies())
      throw usage_error(
          "the codec codes layers or sides together; attention to one would decode all of them");
  }

  size_t tokens() const { return tokens_; }
  /// Keys, after the rotary embedding, and values of these tokens and, behind them, of more that come; behind codes of those read last.
  LayerRows& rows() { return rows_; }
  /// The states behind these tokens of layers without keys and values, one for each layer of the model, or empty if it has none such.
  std::vector<std::vector<float>>& states() { return states_; }
  /// Makes it have so many tokens, at most `room`, with those rows; the caller fills rows of new ones. Not behind codes.
  void start(size_t tokens);

  /// Reads tokens behind those that are there, and returns the logits of the last one: (vocabulary_size). Progress counts tokens.
  /// attention: as in PrefillOptions, not behind codes. Throws Error(usage) for tokens beyond the room, and the model's errors.
  std::span<const float> read(std::span<const uint32_t> tokens, const Progress& progress = {},
                              AttentionMethod* attention = nullptr);

 private:
  class Cache;
  class Sink;
  class Past;

  const LlamaModel& model_;
  CodedDocument* codes_ = nullptr;
  LayerRows rows_;
  std::vector<std::vector<float>> states_;  // of layers without keys and values
  size_t room_, tokens_ = 0;
  std::vector<float> logits_;
};

/// A cache that is put together of equal pieces, each of which the model reads by itself.
struct Joining {
  size_t pieces = 1;
  size_t recomputed =
      0;  ///< first tokens of each later piece that the model reads again, behind those before them
  std::vector<uint32_t> begin =
      {};  ///< tokens that it reads before each piece but the first, which has them; the cache is without them
};

/// The rotary embedding by which keys of pieces are turned to their places. Throws Error(usage) for a model whose embedding cannot be turned
/// back, or that keeps a state.
KeyRope rope_to_join(const ModelConfig& config);
/// The keys and values of tokens that are joined so; keys are turned to their places (EPIC, "Position-independent caching"). Throws
/// Error(usage) for more pieces than tokens, and as rope_to_join().
LayerRows read_in_pieces(const LlamaModel& model, std::span<const uint32_t> tokens, const Joining& joining);

}  // namespace kvcodec
