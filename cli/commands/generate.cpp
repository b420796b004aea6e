#include <algorithm>
#include <optional>

#include "cli/codecs/codec_spec.hpp"
#include "cli/codecs/coding.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/joined_cache.hpp"
#include "cli/inputs/model_runner.hpp"
#include "formats/models/chat.hpp"
#include "formats/models/layer_state.hpp"
#include "lib/core/checked.hpp"
#include "lib/pipeline/coded_document.hpp"
#include "lib/pipeline/generation.hpp"
#include "lib/pipeline/selection.hpp"

namespace kvcodec::cli {
namespace {

/// How the cache is held.
enum class CacheForm : uint8_t { automatic, coded, decoded };
constexpr auto names_of(CacheForm) { return std::to_array<std::string_view>({"auto", "coded", "decoded"}); }

struct GenerateOptions final : CommandOptions {
  JoinOptions join;
  CacheForm cache = CacheForm::automatic;
  std::string model, prompt;
  bool chat = false, stop = true;
  int64_t tokens = 128;
  Compute compute = Compute::f32;
  Sampling sampling;
  SelectionOptions selection = SelectionOptions::of(SelectBy::all, SelectionSetup::best);

  std::vector<OptionField> fields() override {
    return {
        {"prompt", "text that the model reads behind the cache; - is standard input", &prompt},
        {"chat", "put the words of the model's chat template around the prompt", &chat},
        {"tokens", "write N tokens at most", &tokens, 1, 1e6},
        {"stop", "go on behind the token with which the model ends a text or an answer", &stop},
        {"cache",
         "the form in which the cache is held: decoded, or coded, which takes less memory and more time; auto: coded where a "
         "decoded one does not fit --memory and the codec multiplies with codes",
         &cache}};
  }
  /// Those of eval-model that suffice to try a selection.
  std::vector<OptionField> selection_fields() {
    std::vector<OptionField> fields = selection.step_fields();
    std::erase_if(fields, [](const OptionField& field) {
      constexpr std::string_view kTaken[] = {"select", "setup", "budget", "ratio"};
      return std::ranges::find(kTaken, field.name) == std::end(kTaken);
    });
    return fields;
  }
};

/// Text of tokens as they come: prints what no later token can change.
class TokenPrinter {
 public:
  /// before: the token before the first one; with some tokenizers a text's first token loses its space.
  TokenPrinter(const Tokenizer& tokenizer, uint32_t before, bool prints)
      : tokenizer_(tokenizer), prints_(prints), waiting_{before} {}

  void add(uint32_t token) {
    waiting_.push_back(token);
    // Bytes of a character that is not whole decode to U+FFFD, and later ones change the text of a run of byte tokens.
    const auto spelling = tokenizer_.token_of(token);
    if (spelling && spelling->starts_with("<0x") && spelling->ends_with(">")) return;
    if (!fresh().ends_with("\uFFFD")) take();
  }
  void end() {
    take();
    if (prints_) write_output("\n");
  }
  const std::string& text() const { return text_; }

 private:
  /// The text of the waiting tokens behind the first, which is printed already.
  std::string fresh() const {
    const std::string all = tokenizer_.decode(waiting_, true);
    return all.substr(std::min(all.size(), tokenizer_.decode({&waiting_.front(), 1}, true).size()));
  }
  void take() {
    const std::string fresh_text = fresh();
    if (prints_) write_output(fresh_text);
    text_ += fresh_text;
    waiting_ = {waiting_.back()};
  }

  const Tokenizer& tokenizer_;
  bool prints_;
  std::vector<uint32_t> waiting_;
  std::string text_;
};

/// A document of a codes file as codes in memory, for text that a model writes behind it, and the way to write it back.
class CodedCache {
 public:
  /// Reads all its codes. book: as of CodecOfFile; engine: multiplies, may be nullptr. config: of the model that goes on, which has the shapes of the
  /// file's; outlives this. Throws Error(bad_input) for codes without all of its layers, or damaged ones.
  CodedCache(const std::string& file, const std::string& book, Engine* engine, size_t document,
             const ModelConfig& config)
      : reader_(file),
        codec_(reader_, book, engine),
        number_(document),
        layout_(codec_.codec(), config, reader_.info().source_dtype),
        document_(layout_, ids(), left_out()) {
    for (size_t part = 0; part < layout_.parts(); ++part) {
      const GroupShape& shape = layout_.shape(part);
      if (std::ranges::find(reader_.info().groups, shape.first_layer()) == reader_.info().groups.end())
        throw bad_input("{}: has no codes of layer {}", file, shape.first_layer());
      at_dataset(file, shape.side, shape.first_layer(),
                 [&] { document_.copy(part, *reader_.document(shape.side, shape.first_layer(), document)); });
    }
  }

  /// True if the codec multiplies keys and values of a layer without decoding them.
  bool pays() const { return codec_.multiplies() && document_.multiplies(); }
  bool appends() const { return codec_.entry().capabilities.appends; }
  CodedDocument& document() { return document_; }
  /// Bits per value, without the codec's book.
  double bits_per_value() const { return document_.stored(document_.tokens()).bits_per_value(); }
  std::string_view codec_name() const { return codec_.entry().name; }

  /// Writes a codes file of this document with what was added to it. ids: of all its tokens; empty where they are not known. state: behind
  /// them, of models that have one.
  void write(OutputFile& output, std::span<const uint32_t> ids, std::vector<StateTensor> state,
             const Provenance& provenance) const {
    const uint64_t tokens = document_.tokens();
    CodesInfo info = reader_.info();
    DocumentFacts facts = info.documents.facts_of(number_);
    facts.state = std::move(state);
    facts.digest.reset();
    if (!ids.empty()) facts.digest = token_digest(ids);
    Documents documents;
    documents.add(info.documents.names[number_], tokens,
                  info.documents.whole() ? std::span<const uint64_t>() : info.documents.left_out[number_],
                  facts);
    info.documents = std::move(documents);
    const auto positions = numbers_below<uint64_t>(tokens);
    const std::optional<Book> embedded = reader_.embedded_book();
    CodesWriter writer(output, info, codec_.codec(), {ids, positions}, embedded ? &*embedded : nullptr,
                       &reader_);
    for (size_t part = 0; part < layout_.parts(); ++part) {
      const GroupShape& shape = layout_.shape(part);
      StreamStore& streams = writer.document(shape.side, shape.first_layer(), 0);
      for (const StreamSpec& spec : document_.encoded(part).specs())
        if (!spec.shared) streams.append(spec.name, document_.encoded(part).bytes(spec.name));
    }
    writer.finish(provenance);
  }

 private:
  std::vector<uint32_t> ids() const {
    return reader_.has_tokens() ? reader_.tokens_of(number_) : std::vector<uint32_t>();
  }
  /// For each part, the number of first tokens that it leaves out.
  std::vector<size_t> left_out() const {
    return mapped<size_t>(numbers_below<size_t>(layout_.parts()), [&](size_t part) {
      return reader_.info().documents.left_out_of(layout_.shape(part).first_layer(), number_);
    });
  }

  CodesReader reader_;
  CodecOfFile codec_;
  size_t number_;
  CodedLayout layout_;
  CodedDocument document_;
};

/// Writes the codes with what was read. ids: of that; state: behind it.
using WriteCodes = std::function<void(const CodedCache& codes, std::span<const uint32_t> ids,
                                      std::vector<StateTensor> state)>;

/// Seconds of the stages.
struct Timing {
  double cache = 0, prompt = 0, tokens = 0;
};

struct Answer {
  std::vector<uint32_t> prompt, ids;
  uint64_t cached = 0;
  std::string text;
  bool ended = false;
  std::string codec = {};     ///< of codes that grew; empty: there are none
  double bits_per_value = 0;  ///< of these, at the end
  bool stays_coded = false;
  uint64_t context = 0;  ///< tokens at the end
  SelectionCount selected;
  Timing timing;
};

std::string prompt_text(const GenerateOptions& options, const ModelFiles& files, const ChatForm*& form) {
  std::string prompt = options.prompt;
  if (prompt == "-") {
    prompt = read_texts(options.common, {"-"}).front().text;
    if (prompt.ends_with('\n')) prompt.pop_back();  // which echo and editors add
  }
  if (!options.chat) return prompt;
  form = &chat_form_of(files.chat_template(), options.model);
  return fmt::format("{}{}{}", form->before, prompt, form->behind);
}

/// Fills the first rows of the document with the cache.
void read_cache(const JoinedCache& cache, GrowingDocument& document, const CommonOptions& common) {
  document.start(cache.tokens());
  ProgressBar bar("cache", "tokens", common.quiet);
  cache.read([&](Side side, int layer, uint64_t first, MatrixView<const float> rows) {
    Matrix<float>& to = document.rows().of(side)[as_size(layer)];
    for (size_t i = 0; i < rows.rows(); ++i) std::ranges::copy(rows.row(i), to.row(first + i).begin());
    bar.update(static_cast<double>(first + rows.rows()), static_cast<double>(cache.tokens()));
  });
}

/// Layers that keep keys and values of their own.
int layers_with_cache(const ModelInfo& model) {
  int count = 0;
  for (int layer = 0; layer < model.num_layers; ++layer) count += model.layer_shape(layer).heads > 0;
  return count;
}

/// Throws Error(bad_input) for a cache that this model cannot go on with.
void check_cache(const JoinedCache& cache, const GenerateOptions& options, ModelFiles& files) {
  const std::string& file = options.join.files.front();
  const ModelInfo model = model_info(options.model, files, false);
  check_same_weights(file, cache.model(), options.model, model);
  if (cache.model().num_layers != model.num_layers ||
      static_cast<int>(cache.layers().size()) != layers_with_cache(model))
    throw bad_input("{}: has the caches of {} of {} layers; the model needs those of all {}", file,
                    cache.layers().size(), cache.model().num_layers, layers_with_cache(model));
  for (int layer = 0; layer < model.num_layers; ++layer)
    if (cache.model().layer_shape(layer) != model.layer_shape(layer))
      throw bad_input("{}: its layer {} has other heads or dimensions than that of {}", file, layer,
                      options.model);
}

/// Codes that grow: of a cache that stays coded, or that is written back; nullptr: they are needed for neither. fits: it may be decoded. Throws
/// Error(usage) where they cannot be as the user wants them.
std::unique_ptr<CodedCache> growing_codes(const GenerateOptions& options, const JoinedCache* cache,
                                          const ModelConfig& config, bool fits) {
  const bool stays = options.cache == CacheForm::coded, wanted = stays || !options.output.path.empty(),
             allowed = options.cache != CacheForm::decoded && options.selection.by == SelectBy::all;
  if (!cache || (!wanted && (fits || !allowed))) return nullptr;
  const std::optional<size_t> document = cache->unchanged();
  const std::string& file = options.join.files.front();
  if (!document || identify(file).type != "codes") {
    if (wanted)
      throw usage_error(
          "--cache coded and -o are for one document of a codes file that stays at its positions");
    return nullptr;
  }
  auto codes =
      std::make_unique<CodedCache>(file, options.join.book, options.common.engine(), *document, config);
  if (wanted && !codes->appends())
    throw usage_error("{}: nothing can be added to codes of {}", file, codes->codec_name());
  if (stays && !codes->document().multiplies())
    throw usage_error(
        "{}: {} codes layers or sides together, so that each step would decode all of them; use --cache decoded",
        file, codes->codec_name());
  return wanted || (codes->pays() && codes->appends()) ? std::move(codes) : nullptr;
}

Answer answer(const GenerateOptions& options, const JoinedCache* cache, ModelFiles& files,
              const WriteCodes& write) {
  const ModelConfig& config = files.description().config;
  const Tokenizer tokenizer = make_tokenizer(files, options.common);
  const ChatForm* form = nullptr;
  Answer result;
  // The cache's documents have the begin of a text already.
  result.prompt = tokenizer.encode(prompt_text(options, files, form), false);
  if (!cache) {
    const auto before = template_of(tokenizer).before;
    result.prompt.insert(result.prompt.begin(), before.begin(), before.end());
  }
  if (result.prompt.empty())
    throw usage_error("--prompt has no tokens; the model needs at least one to go on from");
  result.cached = cache ? cache->tokens() : 0;
  const uint64_t room = result.cached + result.prompt.size() + as_size(options.tokens);
  if (config.max_positions > 0 && room > static_cast<uint64_t>(config.max_positions))
    options.common.note("the text may grow to {} tokens; the model was made for {}", room,
                        config.max_positions);
  LlamaModel model = make_model(files, options.common, options.compute);
  keep_weights(model, {.tokens = result.prompt.size() + as_size(options.tokens)});

  const Stopwatch watch;
  const uint64_t bytes =
      checked_mul(room, sizeof(float) * as_size(config.num_layers) * as_size(config.cache_width()));
  const bool fits = bytes <= options.common.memory_bytes();
  const std::unique_ptr<CodedCache> codes = growing_codes(options, cache, config, fits);
  const bool stays_coded = codes && (options.cache == CacheForm::coded || !fits);
  if (!fits && !stays_coded)
    throw usage_error(
        "the cache may grow to {} tokens and {} bytes; {} are allowed: write fewer --tokens, or give more --memory",
        grouped(room), grouped(bytes), grouped(options.common.memory_bytes()));
  std::optional<GrowingDocument> document;
  if (stays_coded) {
    document.emplace(model, room, codes->document());
  } else {
    document.emplace(model, room);
    if (cache) read_cache(*cache, *document, options.common);
  }
  if (cache) document->states() = layer_states(config, cache->state(), options.join.files.back());
  result.timing.cache = watch.seconds();
  std::vector<uint32_t> ends = options.stop ? files.end_tokens() : std::vector<uint32_t>();
  if (options.stop && form && !form->end.empty())
    if (const auto id = tokenizer.id_of(form->end)) ends.push_back(*id);
  Rng rng(static_cast<uint64_t>(options.common.seed));
  TokenPrinter printer(tokenizer, result.prompt.back(), !options.common.json);
  std::optional<SelectedAttention> selected;
  if (options.selection.by != SelectBy::all) {
    SelectionRule rule = options.selection.rule(config.num_layers);
    if (rule.by == SelectBy::codes) rule.by = SelectBy::oracle;  // keys are decoded
    selected.emplace(config, std::vector{rule}, document->tokens(), nullptr, options.common.engine());
  }
  AttentionMethod* const attention = selected ? &*selected : nullptr;
  std::span<const float> logits;
  {
    ProgressBar bar("prompt", "tokens", options.common.quiet);
    logits = document->read(result.prompt, bar.callback(), attention);
  }
  result.timing.prompt = watch.seconds() - result.timing.cache;
  while (true) {
    const uint32_t token = choose_token(logits, options.sampling, rng);
    result.ended = std::ranges::find(ends, token) != ends.end();
    if (result.ended) break;
    result.ids.push_back(token);
    printer.add(token);
    if (std::ssize(result.ids) == options.tokens) break;
    logits = document->read({&result.ids.back(), 1}, {}, attention);
  }
  if (selected) result.selected = selected->count(0);
  printer.end();
  result.timing.tokens = watch.seconds() - result.timing.cache - result.timing.prompt;
  result.text = printer.text();
  result.context = document->tokens();
  std::vector<uint32_t> read = result.prompt;
  append_to(read, result.ids);
  read.resize(result.context - result.cached);  // a last token is written, and not read
  if (codes && !stays_coded) codes->document().append(document->rows(), result.cached, result.context, read);
  if (codes) result.codec = codes->codec_name(), result.bits_per_value = codes->bits_per_value();
  result.stays_coded = stays_coded;
  if (write) {
    std::vector<StateTensor> state;
    for (size_t layer = 0; layer < document->states().size(); ++layer)
      if (const auto& of_layer = document->states()[layer]; !of_layer.empty())
        std::ranges::move(tensors_of_state(config, static_cast<int>(layer), of_layer),
                          std::back_inserter(state));
    write(*codes, read, std::move(state));
  }
  return result;
}

std::string report(const Command& command, const GenerateOptions& options, const Answer& answer) {
  const Timing& timing = answer.timing;
  if (options.common.json) {
    Json json = made_by(command);
    json["text"] = answer.text;
    json["tokens"] = answer.ids;
    json["ended"] = answer.ended;
    json["cached_tokens"] = answer.cached;
    json["prompt_tokens"] = answer.prompt.size();
    json["context_tokens"] = answer.context;
    if (!answer.codec.empty()) json["codec"] = answer.codec, json["bits_per_value"] = answer.bits_per_value;
    json["cache"] = name_of(answer.stays_coded ? CacheForm::coded : CacheForm::decoded);
    if (const auto [selections, tokens, visible, beside] = answer.selected; selections > 0)
      json["attended_share"] = static_cast<double>(tokens + beside) / static_cast<double>(visible);
    json["cache_seconds"] = timing.cache;
    json["prompt_seconds"] = timing.prompt;
    json["seconds"] = timing.tokens;
    return text_of(json);
  }
  const std::string codes = answer.codec.empty() ? ""
                                                 : fmt::format("; its codes, by {}, have {:.2f} bits/value",
                                                               answer.codec, answer.bits_per_value);
  options.common.note("{} cached tokens read in {}, {} of the prompt in {}, {} written in {}{}",
                      grouped(answer.cached), time_text(timing.cache), grouped(answer.prompt.size()),
                      time_text(timing.prompt), grouped(answer.ids.size()), time_text(timing.tokens), codes);
  return {};
}

std::string generate(Command& command) {
  GenerateOptions options;
  options.selection = SelectionOptions::peek(command, "select", SelectBy::all);
  command.describe(
      "[FILE...] --model PATH --prompt TEXT [options]",
      "Lets a model go on from a cache: it reads the prompt behind the documents of the files, as if it had read their text, and "
      "writes what it takes for the likeliest continuation, token by token. Codes are decoded once. Of several documents one "
      "context is made, as by join. Without files the model reads the prompt alone.",
      "kvcodec generate codes.h5 --model data/demo-model --prompt ' What is'\n"
      "kvcodec generate kv.h5 --documents a,b --model DIR --chat --prompt 'Who won?'");
  command.group("What is read");
  command.inputs("FILE", "kv and codes files of the model's caches", options.join.files, false);
  command.option(model_field(options.model), "PATH");
  const auto fields = options.fields();
  command.option(fields[0], "TEXT");
  command.option(fields[1]);
  options.documents.declare(command);
  const auto join = options.join.fields();
  command.option(join[0], "FILE");
  command.option(join[1]);
  command.option(fields[4]);
  command.group("What is written");
  options.output.declare(
      command,
      "codes file to write: the document, of a codes file, with what the model read and wrote behind it");
  command.option(fields[2]);
  command.option(fields[3]);
  command.options(options.sampling);
  command.group("Attention to few tokens");
  command.options(options.selection_fields());
  declare_compute(command, options.compute);
  options.common.declare(command);
  command.parse();
  if (options.model.empty())
    throw usage_error("no model is named; give its directory or GGUF file with --model");
  if (!command.given("prompt"))
    throw usage_error("no prompt is given; say with --prompt what the model reads");
  for (const char* only : {"top-k", "top-p"})
    if (command.given(only) && options.sampling.temperature == 0)
      throw usage_error("--{} is for tokens that are drawn; add --temperature", only);
  for (const char* only : {"documents", "keep-bos", "book", "cache", "output"})
    if (command.given(only) && options.join.files.empty())
      throw usage_error("--{} is for caches, and no file is named", only);
  for (const OptionField& field : options.selection_fields())
    if (command.given(field.name) && options.selection.by == SelectBy::all && field.name != "select")
      throw usage_error("--{} is for attention to few tokens; add --select", field.name);
  if (options.selection.by != SelectBy::all && options.join.files.empty())
    throw usage_error("--select is for caches, and no file is named");
  if (options.selection.by != SelectBy::all && options.cache == CacheForm::coded)
    throw usage_error("--select is for decoded caches; leave out --cache coded");
  options.selection.check();
  std::vector<std::string> inputs = options.join.files;
  inputs.insert(inputs.end(), {options.join.book, options.model});
  options.output.check_if_given(command, options.common);
  if (options.output.to_stdout()) throw usage_error("-o -: the text goes to standard output; name a file");
  if (!options.output.path.empty()) options.output.keep(inputs);
  options.common.apply(command, true);

  const auto files = open_model(options.model);
  std::optional<JoinedCache> cache;
  if (!options.join.files.empty()) {
    if (options.join.keep_bos == KeepBos::first) {
      const auto before = template_of(files->tokenizer()).before;
      if (before.empty())
        throw usage_error("--keep-bos first: texts of this model do not begin with a token of their own");
      options.join.bos = before.front();
    }
    cache.emplace(options.join, options.documents, options.common.engine(), true);
    check_cache(*cache, options, *files);
  }
  const auto run = [&](OutputFile* output) {
    WriteCodes write;
    if (output)
      write = [&](const CodedCache& codes, std::span<const uint32_t> read, std::vector<StateTensor> state) {
        std::vector<uint32_t> ids = cache->ids();
        if (!ids.empty()) ids.insert(ids.end(), read.begin(), read.end());
        options.common.record_device(command);
        codes.write(*output, ids, std::move(state), command.provenance(history_of(options.join)));
      };
    return answer(options, cache ? &*cache : nullptr, *files, write);
  };
  return run_perhaps_to_file(options.output, run,
                             [&](const Answer& result) { return report(command, options, result); });
}

}  // namespace

CommandEntry generate_command() {
  return {CommandGroup::attend, 4, "generate", "let a model go on from a cache", generate};
}

}  // namespace kvcodec::cli
