#include "cli/inputs/model_runner.hpp"

#include <algorithm>

#include "lib/core/error.hpp"
#include "lib/engine/engine.hpp"
#include "lib/model/llama_weights.hpp"

namespace kvcodec::cli {

/// 1/kShareOfKept of the machine's memory is available for weights that are laid out for products.
constexpr uint64_t kShareOfKept = 8;

/// Laying out weights pays from this number of tokens on. On two Zen 4 cores it takes 0.08 s for SmolLM2-135M, and some tenths of a
/// second if the system has to find fresh memory. At best dump-kv makes up for that in 500 (f32) or 1,000 tokens (bf16). Cost and
/// gain both grow with the model.
constexpr uint64_t kMinKeptTokens = 2048;

static void write_notes(const std::vector<std::string>& notes, const CommonOptions& common) {
  for (const std::string& note : notes) common.note("{}", note);
}

/// The length of documents if the model's configuration has no context length.
constexpr int64_t kFallbackLength = 1024;

/// Number of documents that may be used, by --max-documents and --max-tokens; at least one.
static size_t max_documents(const JudgedTextOptions& options, int64_t length) {
  const int64_t by_tokens =
      options.max_tokens > 0 ? std::max<int64_t>(1, options.max_tokens / length) : INT64_MAX;
  return static_cast<size_t>(
      std::min(options.max_documents > 0 ? options.max_documents : INT64_MAX, by_tokens));
}

/// The texts cut into documents, the last of a text possibly shorter than `length`; from each text at most as many as may be used.
static std::vector<Document> cut(const JudgedTextOptions& options, const Tokenizer& tokenizer,
                                 const std::vector<SourceText>& texts, int64_t length) {
  const size_t documents_of_text = max_documents(options, length), tokens = as_size(length);
  const size_t limit = documents_of_text > SIZE_MAX / tokens ? SIZE_MAX : documents_of_text * tokens;
  TokenTemplate around;
  if (options.special) around = template_of(tokenizer);
  std::vector<Document> documents;
  for (const SourceText& source : texts)
    with_context(source.name, [&] {
      add_document(documents, {.name = source.name, .tokens = tokenizer.encode_first(source.text, limit)},
                   around, static_cast<uint64_t>(length));
    });
  return documents;
}

OptionField model_field(std::string& model) {
  return {
      "model",
      "model directory as Hugging Face lays it out (config.json, *.safetensors, tokenizer.json), or a GGUF file",
      &model};
}

void declare_compute(Command& command, Compute& compute) {
  command.group("Arithmetic");
  command.option(
      {"compute",
       "how products with the model's weights, and those of attention, are made: f32, or bf16, which "
       "is faster where the processor multiplies it (AVX512-BF16, AMX), and rounds more",
       &compute});
}

LlamaModel make_model(ModelFiles& files, const CommonOptions& common, Compute compute) {
  write_notes(files.description().notes, common);
  LlamaModel model(files.description().config, files.weights());
  Engine* const engine = common.engine();
  if (engine && compute != Compute::f32)
    throw usage_error("--compute {} is of the CPU; leave it out, or add --device cpu", name_of(compute));
  if (engine) model.use(engine->make<PrefillEngine>(model.weights()));
  model.compute_in(compute);
  return model;
}

void keep_weights(LlamaModel& model, const ModelWork& work) {
  if (model.uses_engine() || work.tokens < kMinKeptTokens) return;
  model.compute_in(model.weights().compute,
                   {.bytes = machine_memory() / kShareOfKept, .layers = work.layers, .head = work.logits});
}

Tokenizer make_tokenizer(const ModelFiles& files, const CommonOptions& common) {
  write_notes(files.tokenizer_notes(), common);
  return files.tokenizer();
}

std::vector<OptionField> JudgedTextOptions::fields() {
  return {{"chunk",
           "tokens of a document: texts are cut into as many as they fill (default: the model's context)",
           &chunk, 3},
          {"prefix", "tokens of each document whose cache is worked on (default: half of the document)",
           &prefix, 1},
          {"max-documents",
           spread ? "use N documents, spread evenly over all of them (default: all)"
                  : "use the first N documents (default: all)",
           &max_documents, 1},
          {"max-tokens", "use as many documents as have N tokens together, at least one (default: all)",
           &max_tokens, 1},
          {"special",
           "leave out the special tokens (beginning of text) that the tokenizer puts around a document",
           &special}};
}

int64_t document_length(const JudgedTextOptions& options, const ModelConfig& config) {
  if (options.chunk > 0) return options.chunk;
  return config.max_positions > 0 ? config.max_positions : kFallbackLength;
}

std::vector<LoopDocument> judged_texts(const JudgedTextOptions& options, const CommonOptions& common,
                                       const Tokenizer& tokenizer, const std::vector<SourceText>& texts,
                                       int64_t length) {
  const int64_t prefix = options.prefix > 0 ? options.prefix : length / 2;
  if (prefix + 2 > length)
    throw usage_error("--prefix is {}; documents of {} tokens leave less than two behind it", prefix, length);
  std::vector<Document> documents = cut(options, tokenizer, texts, length);
  std::erase_if(documents, [&](const Document& document) {
    return static_cast<int64_t>(document.tokens.size()) != length;
  });
  if (documents.empty())
    throw bad_input("the texts fill no document of {} tokens; give more, or a smaller --chunk", length);
  auto unused = mapped<std::string>(texts, &SourceText::name);
  for (const Document& document : documents)
    std::erase(unused, document.name.substr(0, document.name.rfind('#')));
  if (!unused.empty())
    common.note("{} not used, shorter than {} tokens: {}{}",
                unused.size() == 1 ? "1 text is" : fmt::format("{} texts are", unused.size()), length,
                unused.front(), unused.size() > 1 ? ", ..." : "");
  std::vector<LoopDocument> judged;
  const size_t limit = std::min(documents.size(), max_documents(options, length));
  if (!options.spread) documents.resize(limit);
  for (Document& document : documents)
    judged.push_back({std::move(document.tokens), static_cast<size_t>(prefix)});
  return spread_documents(std::move(judged), limit);
}

std::vector<LoopDocument> spread_documents(std::vector<LoopDocument> documents, size_t limit) {
  if (documents.size() <= limit) return documents;
  std::vector<LoopDocument> some;
  some.reserve(limit);
  for (size_t i = 0; i < limit; ++i)
    some.push_back(std::move(documents[(2 * i + 1) * documents.size() / (2 * limit)]));
  return some;
}

void check_context(const std::vector<LoopDocument>& documents, const ModelConfig& config) {
  for (const LoopDocument& document : documents)
    if (config.max_positions > 0 && static_cast<int64_t>(document.size()) > config.max_positions)
      throw usage_error("documents of {} tokens; the model's context is {} tokens", document.size(),
                        config.max_positions);
}

}  // namespace kvcodec::cli
