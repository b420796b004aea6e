// Texts as documents of one length whose second part is predicted: what eval-model and sensitivity run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/frame/common.hpp"
#include "lib/core/options.hpp"
#include "lib/model/config.hpp"
#include "lib/pipeline/continuation.hpp"
#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec::cli {

struct JudgedTextOptions final : Options {
  std::vector<std::string> texts;
  int64_t chunk = 0, prefix = 0, max_documents = 0, max_tokens = 0;
  bool special = true;

  std::vector<OptionField> fields() override;
  /// Declares --text. Callers declare the fields themselves, in whichever group they want them.
  void declare_texts(Command& command);
};

/// All texts: their files, and what these hold.
struct Texts {
  std::vector<std::string> files, contents;
};
Texts read_texts(const JudgedTextOptions& options, const CommonOptions& common);

/// Tokens of a document: --chunk, or the model's context.
int64_t document_length(const JudgedTextOptions& options, const ModelConfig& config);

struct JudgedTexts {
  std::vector<std::string> names;
  std::vector<LoopDocument> documents;
};
/// Throws Error(usage) for a prefix that leaves less than two tokens of `length`, and Error(bad_input) for texts
/// that fill no document; notes texts of which nothing is used because they are too short.
JudgedTexts judged_texts(const JudgedTextOptions& options, const CommonOptions& common,
                         const Tokenizer& tokenizer, const Texts& texts, int64_t length);

/// `most` of the documents, spread evenly over all of them; all where there are no more.
std::vector<LoopDocument> spread_documents(std::vector<LoopDocument> documents, size_t most);

/// Tokens of all of them together.
uint64_t tokens_of(const std::vector<LoopDocument>& documents);

/// Throws Error(usage) for documents that are longer than the model's context.
void check_context(const std::vector<LoopDocument>& documents, const ModelConfig& config);

}  // namespace kvcodec::cli
