// kvcodec dump-kv --model PATH (--text PATH ... | --tokens FILE) [options] -o KV
//
//   --chunk N           cut documents into pieces of N tokens
//   --max-tokens N      stop after N tokens
//   --no-special        no beginning-of-text token
//   --queries WHICH     last:N, every:N or none (last:32)
//   --pre-rope          keys and queries before the rotary embedding
//   --window-layers W   of layers with a window, keep all tokens or trim to the last ones (keep)
//   --dtype TYPE        bf16, f16 or f32 (bf16)
//   --resume            go on where an earlier run of this command stopped
//   --append KV         add the documents to this file, in place
//
//   kvcodec dump-kv --model data/demo-model --text docs/ README.md --chunk 512 -o kv.h5
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>

#include "cli/frame/command_entry.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/json.hpp"
#include "cli/frame/measures.hpp"
#include "cli/frame/product.hpp"
#include "cli/frame/progress.hpp"
#include "cli/frame/resume.hpp"
#include "cli/frame/shard.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/documents.hpp"
#include "cli/inputs/growing_cache.hpp"
#include "cli/inputs/model_runner.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/io/far_place.hpp"
#include "formats/io/json_file.hpp"
#include "formats/models/model_files.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/engine/engine.hpp"
#include "lib/model/llama.hpp"

namespace kvcodec::cli {
namespace {

namespace fs = std::filesystem;

// Short documents run together up to this many tokens: enough for the matrix products to run at full speed.
// Fixed, because how documents are packed can change the last bit of a value, and neither --memory nor
// --threads may.
constexpr size_t kBatchTokens = 4096;

struct DumpOptions final : Options {
  std::string model, tokens, append, queries = "last:32";
  DType dtype = DType::bf16;
  Compute compute = Compute::f32;
  std::vector<std::string> texts, metadata;
  int64_t chunk = 0, max_tokens = 0;
  bool pre_rope = false, special = true, skip_duplicates = false;
  WindowLayers window_layers = WindowLayers::keep;
  CommonOptions common;
  OutputOptions output;
  LayerSelection layers;
  DocumentSelection documents;
  ShardOption shard;
  ResumeOptions resume;

  std::vector<OptionField> fields() override {
    return {
        {.name = "model",
         .help =
             "model directory as Hugging Face lays it out (config.json, *.safetensors, tokenizer.json), or a "
             "GGUF file",
         .target = &model},
        {.name = "tokens",
         .help = "token ids instead of text: a text file with one document of ids per line, or the tokens "
                 "of a kv file",
         .target = &tokens},
        {.name = "append",
         .help =
             "add the documents to this kv file, in place, and store of them what it has of others; those that "
             "it has already, with the same names and token ids, are left out. Not with -o",
         .target = &append},
        {.name = "special",
         .help = "leave out the special tokens (beginning of text) that the tokenizer puts around a document",
         .target = &special},
        {.name = "chunk",
         .help = "cut documents into pieces of N tokens, each a document that starts at position 0 "
                 "(default: whole documents; one longer than the model's context is then an error)",
         .target = &chunk,
         .min = 1},
        {.name = "max-tokens", .help = "stop after N tokens (default: all)", .target = &max_tokens, .min = 1},
        {.name = "skip-duplicates",
         .help = "leave out documents, or pieces of documents, with the same token ids as an earlier one",
         .target = &skip_duplicates},
    };
  }
  std::vector<OptionField> product_fields() {
    return {
        {.name = "queries",
         .help = "also store queries of each document: last:N = of its last N tokens, every:N = of every "
                 "Nth, or none",
         .target = &queries},
        {.name = "pre-rope",
         .help = "store keys and queries before the rotary embedding, without their positions",
         .target = &pre_rope},
        {.name = "window-layers",
         .help =
             "of layers with a sliding window, keep all tokens, or trim: store only the last ones of each "
             "document, as many as the window has, which is all that later tokens attend to",
         .target = &window_layers},
        {.name = "dtype",
         .help = "element type of the product",
         .target = &dtype,
         .choices = {"bf16", "f16", "f32"}},
    };
  }
};

// Which queries ------------------------------------------------------------------------------------

struct QueryChoice {
  enum class Kind { none, last, every } kind = Kind::none;
  uint64_t count = 0;

  bool wants(uint64_t position, uint64_t length) const {
    if (kind == Kind::last) return position + count >= length;
    return kind == Kind::every && (position + 1) % count == 0;
  }
};

QueryChoice parse_queries(const std::string& text) {
  QueryChoice choice;
  if (text == "none") return choice;
  std::string_view number;
  if (text.starts_with("last:"))
    choice.kind = QueryChoice::Kind::last, number = std::string_view(text).substr(5);
  if (text.starts_with("every:"))
    choice.kind = QueryChoice::Kind::every, number = std::string_view(text).substr(6);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), choice.count);
  if (number.empty() || error != std::errc{} || end != number.data() + number.size() || choice.count == 0)
    throw usage_error("--queries is '{}'; it must be last:N, every:N or none", text);
  return choice;
}

// Documents ----------------------------------------------------------------------------------------

using NamedTokens = Document;

bool is_hdf5(const std::string& file) {
  refuse_pipe(file);
  std::ifstream in(file, std::ios::binary);
  char bytes[8] = {};
  return in.read(bytes, sizeof bytes) &&
         std::string_view(bytes, sizeof bytes) == std::string_view("\x89HDF\r\n\x1a\n", 8);
}

std::vector<NamedTokens> read_kv_tokens(const std::string& file) {
  const KvReader kv(file);
  if (!kv.has_tokens()) throw bad_input("{}: it has no token ids", file);
  std::vector<NamedTokens> documents;
  for (size_t i = 0; i < kv.documents().count(); ++i) {
    const uint64_t first = kv.documents().offsets[i], count = kv.documents().length(i);
    const auto positions = kv.positions(first, count);
    if (count > 0 && (positions.front() != 0 || positions.back() != count - 1))
      throw bad_input("{}: document '{}' has positions {} to {}; only whole documents can be run again", file,
                      kv.documents().names[i], positions.front(), positions.back());
    documents.push_back(
        {std::string(kv.documents().names[i]), kv.tokens(first, count), kv.documents().facts_of(i).metadata});
  }
  return documents;
}

/// Tokens of a text that can be among those that the model is run over.
size_t most_of_text(const DumpOptions& options) {
  // Pieces that are left out do not count: more of the text is wanted in their place.
  if (options.max_tokens == 0 || options.skip_duplicates) return SIZE_MAX;
  return static_cast<size_t>(options.max_tokens);
}

/// What --text or --tokens names, as tokens; around: what goes around each document.
std::vector<NamedTokens> load_sources(const DumpOptions& options, const ModelFiles& files,
                                      TokenTemplate& around) {
  if (!options.tokens.empty())
    return is_far(options.tokens) || is_hdf5(options.tokens)
               ? read_kv_tokens(options.tokens)
               : read_token_lines(options.tokens, "a list of token ids or a kv file");
  const Tokenizer tokenizer = make_tokenizer(files, options.common);
  if (options.special) around = template_of(tokenizer);
  std::vector<NamedTokens> sources;
  const size_t most = most_of_text(options);
  for (SourceText& source : read_texts(options.common, options.texts))
    sources.push_back({source.name,
                       with_context(source.name, [&] { return tokenizer.encode_first(source.text, most); }),
                       std::move(source.metadata)});
  return sources;
}

/// Leaves only the first so many tokens of all documents.
void cut_to(std::vector<Document>& documents, uint64_t tokens) {
  size_t kept = 0;
  for (; kept < documents.size() && tokens > 0; ++kept) {
    auto& own = documents[kept].tokens;
    own.resize(std::min<uint64_t>(own.size(), tokens));
    tokens -= own.size();
  }
  documents.resize(kept);
}

void leave_out_duplicates(std::vector<Document>& documents, const CommonOptions& common) {
  std::set<Digest128> seen;
  const size_t left_out = std::erase_if(documents, [&](const Document& document) {
    return !seen.insert(token_digest(document.tokens)).second;
  });
  if (left_out > 0)
    common.note("{} left out: same token ids as an earlier document", counted(left_out, "document"));
}

/// Adds what --meta says to what documents bring along, which holds where both name a key.
void add_metadata(std::vector<Document>& documents, const std::vector<std::string>& entries) {
  Json common = Json::object();
  for (const std::string& entry : entries) {
    const size_t sign = entry.find('=');
    if (sign == 0 || sign == std::string::npos)
      throw usage_error("--meta is '{}'; it must be KEY=VALUE, as license=cc0", entry);
    common[entry.substr(0, sign)] = entry.substr(sign + 1);
  }
  if (common.empty()) return;
  for (Document& document : documents) {
    Json all = common;
    if (!document.metadata.empty())
      all.update(Json(parse_json_object(document.metadata, document.name + ": metadata")));
    document.metadata = all.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

void check_lengths(const std::vector<Document>& documents, const ModelConfig& config, int64_t chunk) {
  for (const auto& document : documents)
    if (config.max_positions > 0 && document.tokens.size() > static_cast<size_t>(config.max_positions))
      throw chunk > 0
          ? usage_error("--chunk is {}; the model's context is {} tokens", chunk, config.max_positions)
          : bad_input("{}: its {} tokens are more than the model's context of {}; cut it with --chunk {}",
                      document.name, document.tokens.size(), config.max_positions, config.max_positions);
}

/// All documents as they will be run. Ids take a thousandth of what their keys and values will take on disk,
/// so they are held.
std::vector<Document> load_documents(const DumpOptions& options, const ModelFiles& files,
                                     const GrowingCache* growing) {
  const ModelConfig& config = files.description().config;
  TokenTemplate around;
  const std::vector<NamedTokens> sources = load_sources(options, files, around);
  Documents table;
  for (const auto& source : sources) table.add(source.name, source.tokens.size());
  std::vector<Document> documents;
  for (const size_t i : options.documents.choose(table, options.tokens.empty() ? "--text" : options.tokens)) {
    const NamedTokens& source = sources[i];
    if (source.tokens.empty()) {
      options.common.note("{} has no tokens and is left out", source.name);
      continue;
    }
    const auto largest = *std::max_element(source.tokens.begin(), source.tokens.end());
    if (largest >= static_cast<uint32_t>(config.vocabulary_size))
      throw bad_input("{}: token id {} is beyond the model's vocabulary of {}", source.name, largest,
                      config.vocabulary_size);
    add_document(documents, source, around, static_cast<uint64_t>(options.chunk));
  }
  if (options.skip_duplicates) leave_out_duplicates(documents, options.common);
  add_metadata(documents, options.metadata);
  if (documents.empty()) throw bad_input("there are no tokens to run the model over");
  if (options.max_tokens > 0) cut_to(documents, static_cast<uint64_t>(options.max_tokens));
  if (growing)
    options.common.note_stored(growing->kv().name(), growing->take_out(documents, options.skip_duplicates));
  check_lengths(documents, config, options.chunk);
  return documents;
}

// Running the model --------------------------------------------------------------------------------

/// Of each layer, how many of the first tokens of a document of that length are not stored; empty: none.
std::vector<uint64_t> left_out_of(const ModelConfig& config, WindowLayers choice, uint64_t length) {
  std::vector<uint64_t> left_out;
  for (int layer = 0; layer < config.num_layers && choice == WindowLayers::trim; ++layer)
    left_out.push_back(length - tokens_kept(choice, config, layer, length));
  return left_out;
}

/// Takes what the forward pass computes for a batch of documents to the file.
class KvSink final : public PrefillSink {
 public:
  KvSink(KvWriter& writer, const ModelConfig& config, const std::vector<int>& layers,
         const DumpOptions& options, QueryChoice queries)
      : writer_(writer),
        config_(config),
        layers_(layers),
        pre_rope_(options.pre_rope),
        window_layers_(options.window_layers),
        queries_(queries) {}

  /// first_row: of the batch in the file.
  void start_batch(std::span<const uint64_t> offsets, uint64_t first_row) {
    offsets_.assign(offsets.begin(), offsets.end());
    first_row_ = first_row;
    wanted_.clear();
    if (queries_.kind == QueryChoice::Kind::none) return;
    for (size_t d = 0; d + 1 < offsets.size(); ++d)
      for (uint64_t t = offsets[d]; t < offsets[d + 1]; ++t)
        if (queries_.wants(t - offsets[d], offsets[d + 1] - offsets[d])) wanted_.push_back(t);
  }

  void layer(const LayerChunk& chunk) override {
    if (std::find(layers_.begin(), layers_.end(), chunk.layer) == layers_.end()) return;
    append(Side::key, chunk, pre_rope_ ? chunk.key_before_rope : chunk.key);
    append(Side::value, chunk, chunk.value);
    const auto queries = pre_rope_ ? chunk.query_before_rope : chunk.query;
    const auto first = std::lower_bound(wanted_.begin(), wanted_.end(), chunk.first);
    const auto last = std::lower_bound(first, wanted_.end(), chunk.first + queries.rows());
    if (first == last) return;
    Matrix<float> rows(static_cast<size_t>(last - first), queries.cols());
    std::vector<uint64_t> places;
    for (auto place = first; place != last; ++place) {
      std::copy_n(queries.row(*place - chunk.first).begin(), queries.cols(), rows.row(places.size()).begin());
      places.push_back(first_row_ + *place);
    }
    writer_.append_queries(chunk.layer, places, rows);
  }

 private:
  /// rows: of the chunk's tokens; those that are stored of the layer are written.
  void append(Side side, const LayerChunk& chunk, MatrixView<const float> rows) {
    if (window_layers_ == WindowLayers::keep) return writer_.append(side, chunk.layer, rows);
    const uint64_t end = chunk.first + rows.rows();
    for (size_t d = 0; d + 1 < offsets_.size(); ++d) {
      const uint64_t stored =
          tokens_kept(window_layers_, config_, chunk.layer, offsets_[d + 1] - offsets_[d]);
      const uint64_t from = std::max<uint64_t>(offsets_[d + 1] - stored, chunk.first),
                     to = std::min(offsets_[d + 1], end);
      if (from < to) writer_.append(side, chunk.layer, rows.rows(from - chunk.first, to - from));
    }
  }

  KvWriter& writer_;
  const ModelConfig& config_;
  const std::vector<int>& layers_;
  bool pre_rope_;
  WindowLayers window_layers_;
  QueryChoice queries_;
  std::vector<uint64_t> offsets_;  // of the batch
  uint64_t first_row_ = 0;
  std::vector<uint64_t> wanted_;  // rows of the batch whose queries are stored, ascending
};

/// Documents [first, end) of one run of the model.
struct Batch {
  size_t first = 0, end = 0;
  uint64_t tokens = 0, longest = 0;
};

std::vector<Batch> make_batches(const std::vector<Document>& documents) {
  std::vector<Batch> batches;
  for (size_t i = 0; i < documents.size(); ++i) {
    const uint64_t length = documents[i].tokens.size();
    if (batches.empty() || batches.back().tokens + length > kBatchTokens) batches.push_back({i, i, 0, 0});
    batches.back().end = i + 1;
    batches.back().tokens += length;
    batches.back().longest = std::max(batches.back().longest, length);
  }
  return batches;
}

/// The batches of a share, one behind the other, and their documents: batches are as they are without --shard, because what
/// runs together can change last bits.
std::vector<Batch> take_share(const Shard& shard, const std::vector<Batch>& batches,
                              std::vector<Document>& documents) {
  std::vector<uint64_t> offsets{0};
  for (const Batch& batch : batches) offsets.push_back(offsets.back() + batch.tokens);
  std::vector<Batch> taken;
  std::vector<Document> own;
  for (const size_t number : shard.choose(offsets)) {
    Batch batch = batches[number];
    const size_t first = own.size();
    for (size_t i = batch.first; i < batch.end; ++i) own.push_back(std::move(documents[i]));
    batch.first = first, batch.end = own.size();
    taken.push_back(batch);
  }
  documents = std::move(own);
  return taken;
}

void check_memory(const ModelConfig& config, const PrefillOptions& prefill, const std::vector<Batch>& batches,
                  const std::vector<Document>& documents, const CommonOptions& common) {
  for (const auto& batch : batches) {
    const uint64_t needed = prefill_bytes(config, prefill, batch.tokens, batch.longest, num_threads());
    if (needed > common.memory_bytes())
      throw failed("running {}{} takes {} of memory beside the weights; give --memory at least that{}",
                   documents[batch.first].name,
                   batch.end - batch.first > 1
                       ? fmt::format(" and {} other documents", batch.end - batch.first - 1)
                       : "",
                   size_text(needed), batch.longest > kBatchTokens ? ", or cut documents with --chunk" : "");
  }
}

/// first_row: tokens that the file has before.
void run_model(const LlamaModel& model, const PrefillOptions& prefill, WindowLayers window_layers,
               const std::vector<Document>& documents, std::span<const Batch> batches,
               const Documents& expected, uint64_t first_row, KvWriter& writer, KvSink& sink,
               ProgressBar& bar) {
  uint64_t done = 0;
  size_t number = 0;
  const auto computed = static_cast<uint64_t>(std::max<int64_t>(now(), 0));
  writer.expect(expected);
  for (const auto& batch : batches) {
    std::vector<uint32_t> tokens;
    std::vector<uint64_t> offsets = {0};
    for (size_t i = batch.first; i < batch.end; ++i) {
      const auto& document = documents[i];
      std::vector<uint64_t> positions(document.tokens.size());
      std::iota(positions.begin(), positions.end(), uint64_t{0});
      DocumentFacts facts = expected.facts_of(number++);
      facts.time = computed;
      writer.add_document(document.name, document.tokens, positions,
                          left_out_of(model.config(), window_layers, document.tokens.size()), facts);
      tokens.insert(tokens.end(), document.tokens.begin(), document.tokens.end());
      offsets.push_back(tokens.size());
    }
    sink.start_batch(offsets, first_row + done);
    model.prefill({tokens, offsets}, prefill, sink, [&](double part, double, std::string_view) {
      bar.update(static_cast<double>(done) + part, static_cast<double>(expected.tokens()));
    });
    done += batch.tokens;
  }
}

void declare(Command& command, DumpOptions& options) {
  command.describe(
      "--model PATH (--text PATH ... | --tokens FILE) [options] -o KV",
      "Runs a model over text and stores the keys and values of every layer, token by token, as the model "
      "computes them: what a serving engine holds in its cache after reading the text. Models: Llama, "
      "Mistral, Mixtral, Qwen, Gemma, GPT-NeoX, gpt-oss, Granite, OLMo 2, Phi, SmolLM3, StarCoder2 and DeepSeek (the man "
      "page says which of them) as Hugging Face directories or GGUF files, whose quantized weights stay as they are. Every text file is a "
      "document; --chunk cuts long ones.",
      "kvcodec dump-kv --model data/demo-model --text docs/ README.md --chunk 512 -o kv.h5\n"
      "kvcodec dump-kv --model data/demo-model --tokens ids.txt --queries every:16 --dtype f32 -o kv.h5");
  const auto fields = options.fields();
  command.group("Input and output");
  command.option(fields[0], "PATH");
  command.repeated(
      "text",
      "text files and folders (all files in them, by name, without hidden ones); - is standard input; of a file called "
      "*.jsonl each line is a document: an object with text, and perhaps id and metadata",
      options.texts, "PATH", true);
  command.option(fields[1], "FILE");
  options.output.declare_with_skip(command, "kv file to write");
  options.resume.declare(command);
  command.option(fields[2], "KV");
  command.group("Documents");
  for (size_t i = 3; i < fields.size(); ++i) command.option(fields[i]);
  command.repeated("meta", "store KEY and VALUE with each document; may be given several times",
                   options.metadata, "KEY=VALUE");
  command.record_as_given("meta");
  options.documents.declare(command);
  options.shard.declare(command);
  command.group("What is stored");
  command.options(options.product_fields(), {{"queries", "WHICH"}});
  options.layers.declare(command);
  declare_compute(command, options.compute);
  options.common.declare(command);
}

/// The files that are read, those of the model's folder aside.
std::vector<std::string> inputs_of(const DumpOptions& options) {
  std::vector<std::string> read = text_files(options.texts);
  read.insert(read.end(), {options.model, options.tokens});
  return read;
}

/// With --append, the file that grows is the output, and says what is stored.
void check_append(const Command& command, DumpOptions& options) {
  if (options.append.empty()) return;
  for (const char* fixed : {"dtype", "layers", "pre-rope"})
    if (command.given(fixed))
      throw usage_error("--append goes on as {} was made; leave out --{}", options.append, fixed);
  for (const char* of_new : {"output", "resume", "skip-existing"})
    if (command.given(of_new))
      throw usage_error(
          "--append adds to {} in place; leave out --{}. To keep that file as it is, dump to another and join both by "
          "kvcodec cat",
          options.append, of_new);
  options.output.path = options.append;
  options.output.in_place = true;
}

void check_combination(const Command& command, const DumpOptions& options) {
  if (options.model.empty())
    throw usage_error("no model is named; give its directory or GGUF file with --model");
  if (options.texts.empty() == options.tokens.empty())
    throw usage_error("give either --text or --tokens{}", options.texts.empty() ? "" : ", not both");
  options.output.check(options.common);
  (void)options.shard.shard();
  options.output.keep(inputs_of(options));
  options.resume.check(command, options.output, inputs_of(options));
}

/// What the product says of the model; throws Error(bad_input) where the cache that grows is of another one. Comes before the
/// texts are read.
ModelInfo info_of(const DumpOptions& options, ModelFiles& files, const GrowingCache* growing) {
  ModelInfo info = model_info(options.model, files, options.pre_rope);
  if (growing) check_same_model(growing->kv().name(), growing->kv().model(), options.model, info);
  return info;
}

/// A model, and the documents that it is run over, batch by batch.
class Dump {
 public:
  /// growing: the cache that the documents are added to, or nullptr.
  Dump(Command& command, const DumpOptions& options, QueryChoice queries, ModelFiles& files,
       const std::vector<int>& layers, const GrowingCache* growing)
      : command_(command),
        options_(options),
        queries_(queries),
        layers_(layers),
        growing_(growing),
        model_(make_model(files, options.common, options.compute)),
        info_(info_of(options, files, growing)),
        documents_(load_documents(options, files, growing)),
        bar_("dump-kv", "tokens", options.common.quiet) {
    prefill_.queries = queries.kind != QueryChoice::Kind::none;
    prefill_.before_rope = options.pre_rope;
    prefill_.layers = layers.back() + 1;
    batches_ = take_share(options.shard.shard(), make_batches(documents_), documents_);
    check_memory(model_.config(), prefill_, batches_, documents_, options.common);
    keep_weights(model_, {.tokens = tokens_of_all(), .layers = prefill_.layers, .logits = false});
  }

  const ModelInfo& model() const { return info_; }
  size_t documents() const { return documents_.size(); }
  uint64_t tokens() const {
    uint64_t tokens = 0;
    for (const Batch& batch : batches_) tokens += batch.tokens;
    return tokens;
  }
  /// Tokens that the model was run over by this process.
  uint64_t computed() const { return computed_; }

  /// Runs the model over all batches and stores what it computes.
  void write(OutputFile& output) { write({0, batches_.size()}, output); }
  /// The same in pieces, of which some may be there.
  Pieces write_in_pieces(OutputFile& output) {
    uint64_t of_token = 0;
    for (const int layer : layers_) of_token += info_.layer_shape(layer).width() * size_of(options_.dtype);
    std::vector<uint64_t> bytes;
    bytes.reserve(batches_.size());
    for (const Batch& batch : batches_) bytes.push_back(batch.tokens * of_token);
    std::vector<Piece> wanted;
    for (const WorkRange& batches : cut_work(bytes, options_.resume.piece_bytes()))
      wanted.push_back({batches, documents_of(batches)});
    Pieces pieces(command_, options_.common, options_.output, inputs_of(options_), info_, std::move(wanted));
    pieces.write([&](const WorkRange& batches, OutputFile& piece) { write(batches, piece); }, bar_, output);
    return pieces;
  }

 private:
  /// Of all documents, whatever this process' share: shards are to have the bits of the whole.
  uint64_t tokens_of_all() const {
    uint64_t tokens = 0;
    for (const Document& document : documents_) tokens += document.tokens.size();
    return tokens;
  }

  Documents documents_of(const WorkRange& batches) const {
    Documents table;
    for (size_t b = batches.first; b < batches.end; ++b)
      for (size_t i = batches_[b].first; i < batches_[b].end; ++i) {
        const Document& document = documents_[i];
        table.add(document.name, document.tokens.size(),
                  left_out_of(model_.config(), options_.window_layers, document.tokens.size()),
                  {token_digest(document.tokens), document.metadata});
      }
    return table;
  }

  void write(const WorkRange& batches, OutputFile& output) {
    const Documents table = documents_of(batches);
    const auto writer = make_writer(output);
    KvSink sink(*writer, model_.config(), layers_, options_, queries_);
    run_model(model_, prefill_, options_.window_layers, documents_,
              std::span(batches_).subspan(batches.first, batches.end - batches.first), table,
              growing_ ? growing_->kv().documents().tokens() : 0, *writer, sink, bar_);
    // Only now is it known what computed.
    if (computed_ == 0) options_.common.record_device(command_);
    computed_ += table.tokens();
    writer->finish(
        command_.provenance(growing_ ? growing_->kv().type().history : std::vector<std::string>()));
  }

  std::unique_ptr<KvWriter> make_writer(OutputFile& output) const {
    if (growing_) return std::make_unique<KvWriter>(output, growing_->kv());
    std::optional<DType> queries;
    if (queries_.kind != QueryChoice::Kind::none) queries = options_.dtype;
    return std::make_unique<KvWriter>(output, info_, options_.dtype, layers_, queries);
  }

  Command& command_;
  const DumpOptions& options_;
  QueryChoice queries_;
  const std::vector<int>& layers_;
  const GrowingCache* growing_;
  LlamaModel model_;
  ModelInfo info_;
  std::vector<Document> documents_;
  PrefillOptions prefill_;
  std::vector<Batch> batches_;
  ProgressBar bar_;
  uint64_t computed_ = 0;
};

/// What was written.
struct DumpedCache {
  ModelInfo model;
  size_t documents = 0;
  uint64_t tokens = 0, computed = 0, bytes = 0;
  std::optional<size_t> added = {};  ///< of the documents, by --append
};

/// pieces: made where --resume was given. growing: the cache that grows, closed at the end, or nullptr.
DumpedCache write_cache(Command& command, const DumpOptions& options, QueryChoice queries, ModelFiles& files,
                        const std::vector<int>& layers, GrowingCache* growing, OutputFile& output,
                        std::optional<Pieces>& pieces) {
  Dump dump(command, options, queries, files, layers, growing);
  if (options.resume.resume && dump.documents() > 0)
    pieces = dump.write_in_pieces(output);
  else if (!growing || dump.documents() > 0)
    dump.write(output);
  std::error_code no_size;
  DumpedCache cache{.model = dump.model(),
                    .documents = dump.documents(),
                    .tokens = dump.tokens(),
                    .computed = dump.computed(),
                    .bytes = fs::file_size(output.path(), no_size)};
  if (!growing) return cache;
  cache.added = cache.documents;
  cache.documents += growing->kv().documents().count();
  cache.tokens += growing->kv().documents().tokens();
  growing->close();
  return cache;
}

/// What is stored, as the cache that grows has it; --queries and --window-layers may say what is wanted of the documents that
/// are added.
QueryChoice continue_as(const GrowingCache& growing, const Command& command, DumpOptions& options) {
  const KvReader& kv = growing.kv();
  options.dtype = kv.dtype();
  options.pre_rope = growing.before_rope();
  if (!command.given("window-layers") && !kv.documents().whole()) options.window_layers = WindowLayers::trim;
  const QueryChoice queries = parse_queries(options.queries);
  if (kv.query_dtype()) return queries;
  if (command.given("queries") && queries.kind != QueryChoice::Kind::none)
    throw usage_error("{}: has no queries; leave out --queries", kv.name());
  return {};
}

std::string summary(const DumpedCache& product, const std::vector<int>& layers, double seconds,
                    const DumpOptions& options) {
  Measures measures = {word("output", {"cache"}, options.output.path),
                       {"model", to_json(product.model), {"model"}, product.model.model},
                       number_of("documents", {"documents"}, product.documents),
                       number_of("tokens", {"tokens"}, product.tokens),
                       layers_measure(layers),
                       word("dtype", {"dtype"}, name_of(options.dtype)),
                       {"file_bytes", product.bytes, {"file"}, size_text(product.bytes)},
                       time_measure(seconds),
                       rounded(nullptr, {"tokens/s"}, static_cast<double>(product.computed) / seconds, 3)};
  if (product.added) {
    measures.push_back({"documents_added", *product.added});
    measures.push_back({"tokens_added", product.computed});
  }
  return one_row(measures, options.common.json);
}

std::string dump_kv(Command& command) {
  DumpOptions options;
  declare(command, options);
  command.parse();
  check_append(command, options);
  check_combination(command, options);
  QueryChoice queries = parse_queries(options.queries);
  options.common.apply(command, true);
  if (std::string report; options.output.made_before(command, options.common, inputs_of(options), report))
    return report;

  const Stopwatch watch;
  const std::unique_ptr<ModelFiles> files = open_model(options.model);
  std::vector<int> all(static_cast<size_t>(files->description().config.num_layers));
  std::iota(all.begin(), all.end(), 0);
  auto layers = options.layers.choose(all, options.model);
  std::optional<GrowingCache> growing;
  if (!options.append.empty()) {
    growing.emplace(options.output, options.common);
    queries = continue_as(*growing, command, options);
    layers = growing->kv().layers();
  }
  std::optional<Pieces> pieces;
  return run_to_file(
      options.output,
      [&](OutputFile& output) {
        return write_cache(command, options, queries, *files, layers, growing ? &*growing : nullptr, output,
                           pieces);
      },
      [&](const DumpedCache& product) {
        if (pieces) pieces->remove();
        return summary(product, layers, watch.seconds(), options);
      },
      growing ? &growing->held() : nullptr, growing.has_value());
}

}  // namespace

CommandEntry dump_kv_command() {
  return {CommandGroup::prepare, 1, "dump-kv", "run a model over text and store its keys and values",
          dump_kv};
}

}  // namespace kvcodec::cli
