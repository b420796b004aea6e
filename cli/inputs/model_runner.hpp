// Models that commands run: their products (--compute), their device, and texts as documents of one length whose second part is
// predicted, for eval-model and sensitivity.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"
#include "formats/models/model_files.hpp"
#include "lib/core/options.hpp"
#include "lib/model/llama.hpp"
#include "lib/pipeline/continuation.hpp"

namespace kvcodec::cli {

/// --compute, in a group of its own.
void declare_compute(Command& command, Compute& compute);

OptionField model_field(std::string& model);

/// A model from these files, which outlive it, ready to run with these options, after notes on guessed settings. Throws
/// Error(usage) if it cannot run with them. keep_weights() makes it faster for more than a few tokens.
LlamaModel make_model(ModelFiles& files, const CommonOptions& common, Compute compute = Compute::f32);

/// The work for which a command uses a model.
struct ModelWork {
  uint64_t tokens = 0;  ///< that it is run over, about
  int layers = 0;       ///< the first `layers` layers; 0 = all
  bool logits = true;
};

/// Lays out the model's weights for products on this processor, if that pays for the work and takes no more than a share of the
/// memory. Weights that a device multiplies stay unchanged; a model that a device declines is laid out.
void keep_weights(LlamaModel& model, const ModelWork& work);

/// The tokenizer of the model, after notes on guessed settings.
Tokenizer make_tokenizer(const ModelFiles& files, const CommonOptions& common);

struct JudgedTextOptions final : Options {
  std::vector<std::string> texts;
  int64_t chunk = 0, prefix = 0, max_documents = 0, max_tokens = 0;
  bool special = true;
  /// Whether --max-documents takes documents spread evenly over all that the texts fill, or the first ones.
  bool spread = false;

  std::vector<OptionField> fields() override;
  /// Declares --text. Callers declare the fields themselves, in the group of their choice.
  void declare_texts(Command& command) {
    command.repeated(
        "text",
        "text files and folders (all files in them, by name, without hidden ones); - is standard input",
        texts, "PATH", true);
  }
};

/// Tokens of a document: --chunk, or the model's context.
int64_t document_length(const JudgedTextOptions& options, const ModelConfig& config);

/// Throws Error(usage) for a prefix that leaves fewer than two tokens of `length`, and Error(bad_input) for texts that fill no
/// document; notes texts that are too short to be used.
std::vector<LoopDocument> judged_texts(const JudgedTextOptions& options, const CommonOptions& common,
                                       const Tokenizer& tokenizer, const std::vector<SourceText>& texts,
                                       int64_t length);

/// At most `limit` of the documents, spread evenly over all of them.
std::vector<LoopDocument> spread_documents(std::vector<LoopDocument> documents, size_t limit);

inline uint64_t tokens_of(const std::vector<LoopDocument>& documents) {
  uint64_t tokens = 0;
  for (const LoopDocument& document : documents) tokens += document.size();
  return tokens;
}

/// Throws Error(usage) for documents that are longer than the model's context.
void check_context(const std::vector<LoopDocument>& documents, const ModelConfig& config);

}  // namespace kvcodec::cli
