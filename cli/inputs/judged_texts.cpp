#include "cli/inputs/judged_texts.hpp"

#include <algorithm>

#include "cli/inputs/documents.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// Without a context length in the model's configuration.
constexpr int64_t kFallbackLength = 1024;

/// Documents that may be used, by --max-documents and --max-tokens; one at least.
size_t most_documents(const JudgedTextOptions& options, int64_t length) {
  size_t most = SIZE_MAX;
  if (options.max_documents > 0) most = static_cast<size_t>(options.max_documents);
  if (options.max_tokens > 0)
    most = std::min(most, std::max<size_t>(1, static_cast<size_t>(options.max_tokens / length)));
  return most;
}

/// The texts cut into documents, the last of a text perhaps shorter than `length`; of each text as many as may be used.
std::vector<Document> cut(const JudgedTextOptions& options, const Tokenizer& tokenizer, const Texts& texts,
                          int64_t length) {
  const size_t documents_of_text = most_documents(options, length), tokens = static_cast<size_t>(length);
  const size_t most = documents_of_text > SIZE_MAX / tokens ? SIZE_MAX : documents_of_text * tokens;
  TokenTemplate around;
  if (options.special) around = template_of(tokenizer);
  std::vector<Document> documents;
  for (size_t i = 0; i < texts.files.size(); ++i)
    with_context(texts.files[i], [&] {
      add_document(documents,
                   {.name = texts.files[i], .tokens = tokenizer.encode_first(texts.contents[i], most)},
                   around, static_cast<uint64_t>(length));
    });
  return documents;
}

}  // namespace

std::vector<OptionField> JudgedTextOptions::fields() {
  return {
      {.name = "chunk",
       .help = "tokens of a document: texts are cut into as many as they fill (default: the model's context)",
       .target = &chunk,
       .min = 3},
      {.name = "prefix",
       .help = "tokens of each document whose cache is worked on (default: half of the document)",
       .target = &prefix,
       .min = 1},
      {.name = "max-documents",
       .help = "use the first N documents (default: all)",
       .target = &max_documents,
       .min = 1},
      {.name = "max-tokens",
       .help = "use as many documents as have N tokens together, at least one (default: all)",
       .target = &max_tokens,
       .min = 1},
      {.name = "special",
       .help = "leave out the special tokens (beginning of text) that the tokenizer puts around a document",
       .target = &special}};
}

void JudgedTextOptions::declare_texts(Command& command) {
  command.repeated(
      "text", "text files and folders (all files in them, by name, without hidden ones); - is standard input",
      texts, "PATH", true);
}

Texts read_texts(const JudgedTextOptions& options, const CommonOptions& common) {
  Texts texts;
  for (SourceText& source : read_texts(common, options.texts)) {
    texts.files.push_back(std::move(source.name));
    texts.contents.push_back(std::move(source.text));
  }
  return texts;
}

int64_t document_length(const JudgedTextOptions& options, const ModelConfig& config) {
  if (options.chunk > 0) return options.chunk;
  return config.max_positions > 0 ? config.max_positions : kFallbackLength;
}

JudgedTexts judged_texts(const JudgedTextOptions& options, const CommonOptions& common,
                         const Tokenizer& tokenizer, const Texts& texts, int64_t length) {
  const int64_t prefix = options.prefix > 0 ? options.prefix : length / 2;
  if (prefix + 2 > length)
    throw usage_error("--prefix is {}; documents of {} tokens leave less than two behind it", prefix, length);
  std::vector<Document> documents = cut(options, tokenizer, texts, length);
  std::erase_if(documents, [&](const Document& document) {
    return static_cast<int64_t>(document.tokens.size()) != length;
  });
  if (documents.empty())
    throw bad_input("the texts fill no document of {} tokens; give more, or a smaller --chunk", length);
  std::vector<std::string> unused = texts.files;
  for (const Document& document : documents)
    std::erase(unused, document.name.substr(0, document.name.rfind('#')));
  if (!unused.empty())
    common.note("{} not used, shorter than {} tokens: {}{}",
                unused.size() == 1 ? "1 text is" : fmt::format("{} texts are", unused.size()), length,
                unused.front(), unused.size() > 1 ? ", ..." : "");
  JudgedTexts judged;
  documents.resize(std::min(documents.size(), most_documents(options, length)));
  for (Document& document : documents) {
    judged.names.push_back(std::move(document.name));
    judged.documents.push_back({std::move(document.tokens), static_cast<size_t>(prefix)});
  }
  return judged;
}

std::vector<LoopDocument> spread_documents(std::vector<LoopDocument> documents, size_t most) {
  if (documents.size() <= most) return documents;
  std::vector<LoopDocument> some;
  some.reserve(most);
  for (size_t i = 0; i < most; ++i)
    some.push_back(std::move(documents[(2 * i + 1) * documents.size() / (2 * most)]));
  return some;
}

uint64_t tokens_of(const std::vector<LoopDocument>& documents) {
  uint64_t tokens = 0;
  for (const LoopDocument& document : documents) tokens += document.tokens.size();
  return tokens;
}

void check_context(const std::vector<LoopDocument>& documents, const ModelConfig& config) {
  for (const LoopDocument& document : documents)
    if (config.max_positions > 0 && static_cast<int64_t>(document.tokens.size()) > config.max_positions)
      throw usage_error("documents of {} tokens; the model's context is {} tokens", document.tokens.size(),
                        config.max_positions);
}

}  // namespace kvcodec::cli
