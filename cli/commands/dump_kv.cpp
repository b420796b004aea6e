// kvcodec dump-kv --model PATH (--text PATH ... | --tokens FILE) [options] -o KV
#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>

#include "cli/frame/common.hpp"
#include "cli/frame/resume.hpp"
#include "cli/inputs/documents.hpp"
#include "cli/inputs/model_runner.hpp"
#include "formats/io/http.hpp"
#include "formats/io/json_file.hpp"
#include "formats/models/layer_state.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/parallel.hpp"
#include "lib/engine/engine.hpp"

namespace kvcodec::cli {
namespace {

// Short documents run together up to this many tokens: enough for the matrix products to run at full speed. It is fixed, because
// the batches of documents can change the last bit of a value, which must not depend on --memory or --threads.
constexpr size_t kBatchTokens = 4096;

struct DumpOptions final : CommandOptions {
  std::string model, tokens, append, queries = "last:32";
  DType dtype = DType::bf16;
  Compute compute = Compute::f32;
  std::vector<std::string> texts, metadata;
  int64_t chunk = 0, max_tokens = 0;
  bool pre_rope = false, special = true, skip_duplicates = false, replace = false;
  WindowLayers window_layers = WindowLayers::keep;
  ShardOption shard;
  ResumeOptions resume;

  std::vector<OptionField> fields() override {
    return {
        model_field(model),
        {"tokens",
         "token ids instead of text: a text file with one document of ids per line, or the tokens of a kv "
         "file",
         &tokens},
        {"append",
         "add the documents to this kv file, in place, with its type, layers, and queries if any; not with -o",
         &append},
        {"special",
         "leave out the special tokens (beginning of text) that the tokenizer puts around a document",
         &special},
        {"chunk",
         "cut documents into pieces of N tokens, each a document that starts at position 0 (default: whole "
         "documents; one longer than the model's context is then an error)",
         &chunk, 1},
        {"max-tokens", "stop after N tokens (default: all)", &max_tokens, 1},
        {"skip-duplicates",
         "leave out documents, or pieces of documents, with the same token ids as an earlier one, whatever their names",
         &skip_duplicates},
        replace_field(replace),
    };
  }
  std::vector<OptionField> output_fields() {
    return {
        {"queries",
         "also store queries of each document: last:N = of its last N tokens, every:N = of every Nth, or "
         "none",
         &queries},
        {"pre-rope", "store keys and queries before the rotary embedding, without their positions",
         &pre_rope},
        {"window-layers",
         "of layers with a sliding window, keep all tokens, or trim: store only the last ones of each "
         "document, as many as the window has, which is all that later tokens attend to",
         &window_layers},
        {.name = "dtype",
         .help = "element type of the output",
         .target = &dtype,
         .choices = {"bf16", "f16", "f32"}},
    };
  }
};

/// The last queries of a document, or every Nth; none if both are 0.
struct QueryChoice {
  uint64_t last = 0, every = 0;

  bool any() const { return last > 0 || every > 0; }
  bool wants(uint64_t position, uint64_t length) const {
    return every > 0 ? (position + 1) % every == 0 : position + last >= length;
  }
};

QueryChoice parse_queries(const std::string& text) {
  QueryChoice choice;
  if (text == "none") return choice;
  const bool last = text.starts_with("last:");
  const size_t start = last ? 5 : text.starts_with("every:") ? 6 : text.size();
  const auto count = number_in<uint64_t>(std::string_view(text).substr(start));
  if (!count || *count == 0) throw usage_error("--queries is '{}'; it must be last:N, every:N or none", text);
  (last ? choice.last : choice.every) = *count;
  return choice;
}

bool is_hdf5(const std::string& file) {
  refuse_pipe(file);
  std::ifstream in(file, std::ios::binary);
  char bytes[8] = {};
  return in.read(bytes, sizeof bytes) &&
         std::string_view(bytes, sizeof bytes) == std::string_view("\x89HDF\r\n\x1a\n", 8);
}

std::vector<Document> read_kv_tokens(const std::string& file) {
  const KvReader kv(file);
  if (!kv.has_tokens()) throw bad_input("{}: it has no token ids", file);
  std::vector<Document> documents;
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

/// Reads the documents that --text or --tokens names; around: the template of tokens that surrounds each.
std::vector<Document> load_sources(const DumpOptions& options, const ModelFiles& files,
                                   TokenTemplate& around) {
  if (!options.tokens.empty())
    return is_far(options.tokens) || is_hdf5(options.tokens)
               ? read_kv_tokens(options.tokens)
               : read_token_lines(options.tokens, "a list of token ids or a kv file");
  const Tokenizer tokenizer = make_tokenizer(files, options.common);
  if (options.special) around = template_of(tokenizer);
  std::vector<Document> sources;
  // Skipped pieces do not count: more of the text replaces them.
  const size_t limit =
      options.max_tokens == 0 || options.skip_duplicates ? SIZE_MAX : as_size(options.max_tokens);
  for (SourceText& source : read_texts(options.common, options.texts))
    sources.push_back({source.name,
                       with_context(source.name, [&] { return tokenizer.encode_first(source.text, limit); }),
                       std::move(source.metadata)});
  return sources;
}

/// Adds the entries of --meta to the metadata of the documents; if both have a key, the document's entry stays.
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

/// Applies the rule to documents that are added to those of a cache, if there is one.
void take_by_name(NameRule& rule, const DumpOptions& options, const GrowingCache* growing,
                  std::vector<Document>& documents) {
  const size_t before = growing ? growing->kv().documents().count() : 0;
  for (size_t i = 0; i < before; ++i) rule.add(growing->kv().documents().names[i], i);
  rule.keep(documents, before, [&](const Document& document, size_t number) {
    if (options.skip_duplicates && growing && growing->has(document.tokens)) {
      rule.leave_out(document.name);
      return false;
    }
    return rule.takes(document.name, number, [&](size_t earlier) {
      return earlier < before ? growing->is_of(earlier, document.tokens)
                              : documents[earlier - before].tokens == document.tokens;
    });
  });
  rule.note(options.common);
}

/// All documents in the form in which they will be run. They are kept in memory: ids take a thousandth of the space that their keys
/// and values will take on disk.
std::vector<Document> load_documents(const DumpOptions& options, const ModelFiles& files,
                                     const GrowingCache* growing, NameRule& rule) {
  const ModelConfig& config = files.description().config;
  TokenTemplate around;
  const std::vector<Document> sources = load_sources(options, files, around);
  Documents table;
  for (const auto& source : sources) table.add(source.name, source.tokens.size());
  std::vector<Document> documents;
  for (const size_t i : options.documents.choose(table, options.tokens.empty() ? "--text" : options.tokens)) {
    const Document& source = sources[i];
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
  std::set<Digest128> seen;
  const size_t left_out = std::erase_if(documents, [&](const Document& document) {
    return options.skip_duplicates && !seen.insert(token_digest(document.tokens)).second;
  });
  if (left_out > 0)
    options.common.note("{} left out: same token ids as an earlier document", counted(left_out, "document"));
  add_metadata(documents, options.metadata);
  if (documents.empty()) throw bad_input("there are no tokens to run the model over");
  size_t kept = 0;
  uint64_t tokens = options.max_tokens > 0 ? static_cast<uint64_t>(options.max_tokens) : UINT64_MAX;
  for (; kept < documents.size() && tokens > 0; ++kept) {
    auto& own = documents[kept].tokens;
    own.resize(std::min<uint64_t>(own.size(), tokens));
    tokens -= own.size();
  }
  documents.resize(kept);
  take_by_name(rule, options, growing, documents);
  for (const auto& document : documents)
    if (config.max_positions > 0 && document.tokens.size() > static_cast<size_t>(config.max_positions))
      throw options.chunk > 0
          ? usage_error("--chunk is {}; the model's context is {} tokens", options.chunk,
                        config.max_positions)
          : bad_input("{}: its {} tokens are more than the model's context of {}; cut it with --chunk {}",
                      document.name, document.tokens.size(), config.max_positions, config.max_positions);
  return documents;
}

/// Number of first tokens of a document of that length that each layer does not store; empty: none.
std::vector<uint64_t> left_out_of(const ModelConfig& config, WindowLayers choice, uint64_t length) {
  std::vector<uint64_t> left_out;
  for (int layer = 0; layer < config.num_layers && choice == WindowLayers::trim; ++layer)
    left_out.push_back(config.has_cache(layer) ? length - tokens_kept(choice, config, layer, length) : 0);
  return left_out;
}

/// Documents [first, end) of one run of the model.
struct Batch {
  size_t first = 0, end = 0;
  uint64_t tokens = 0, longest = 0;
};

/// The batches of a share, one after the other, and their documents. Batches are the same as without --shard, because they can
/// change last bits.
std::vector<Batch> take_share(const Shard& shard, std::vector<Document>& documents) {
  std::vector<Batch> batches;
  for (size_t i = 0; i < documents.size(); ++i) {
    const uint64_t length = documents[i].tokens.size();
    if (batches.empty() || batches.back().tokens + length > kBatchTokens) batches.push_back({i, i, 0, 0});
    batches.back().end = i + 1;
    batches.back().tokens += length;
    batches.back().longest = std::max(batches.back().longest, length);
  }
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

/// A model and the documents that it is run over, batch by batch.
struct Dump {
  /// growing: the cache to which documents are added, or nullptr.
  Dump(Command& the_command, const DumpOptions& the_options, QueryChoice choice, ModelFiles& files,
       const std::vector<int>& chosen, GrowingCache* cache)
      : command(the_command),
        options(the_options),
        queries(choice),
        layers(chosen),
        growing(cache),
        names(the_options.replace, the_options.output.path),
        model(make_model(files, options.common, options.compute)),
        info(model_info(options.model, files, options.pre_rope)),
        bar("dump-kv", "tokens", options.common.quiet) {
    info.scores = text_of(score_forms(files));
    if (growing) check_same_model(growing->kv().name(), growing->kv().model(), options.model, info);
    documents = load_documents(options, files, growing, names);
    for (size_t i = 0; growing && i < growing->kv().documents().count(); ++i)
      if (!names.gave_way(i)) {
        ++documents_before;
        tokens_before += growing->kv().documents().length(i);
      }
    prefill.queries = queries.any();
    prefill.before_rope = options.pre_rope;
    prefill.layers = layers.back() + 1;
    batches = take_share(options.shard.shard(), documents);
    check_memory();
    keep_weights(model, {.tokens = tokens(), .layers = prefill.layers, .logits = false});
  }

  void check_memory() const {
    for (const Batch& batch : batches) {
      const uint64_t needed =
          prefill_bytes(model.config(), prefill, batch.tokens, batch.longest, num_threads());
      const size_t others = batch.end - batch.first - 1;
      if (needed > options.common.memory_bytes())
        throw failed("running {}{} takes {} of memory beside the weights; give --memory at least that{}",
                     documents[batch.first].name,
                     others > 0 ? fmt::format(" and {} other documents", others) : "", size_text(needed),
                     batch.longest > kBatchTokens ? ", or cut documents with --chunk" : "");
    }
  }

  /// True if the cache gets the documents at its end; else they are written to a new file.
  bool in_place() const { return growing && !names.replaces(); }

  Provenance provenance() const {
    return command.provenance(growing ? growing->kv().type().history : std::vector<std::string>());
  }

  uint64_t tokens() const {
    uint64_t tokens = 0;
    for (const Batch& batch : batches) tokens += batch.tokens;
    return tokens;
  }

  Documents documents_of(const WorkRange& range) const {
    Documents table;
    for (size_t b = range.first; b < range.end; ++b)
      for (size_t i = batches[b].first; i < batches[b].end; ++i) {
        const Document& document = documents[i];
        table.add(document.name, document.tokens.size(),
                  left_out_of(model.config(), options.window_layers, document.tokens.size()),
                  {token_digest(document.tokens), document.metadata});
      }
    return table;
  }

  Command& command;
  const DumpOptions& options;
  QueryChoice queries;
  std::vector<int> layers;
  GrowingCache* growing;
  size_t documents_before = 0;  ///< in the cache that grows, without those that are replaced
  uint64_t tokens_before = 0;   ///< likewise
  NameRule names;
  LlamaModel model;
  ModelInfo info;
  std::vector<Document> documents;
  PrefillOptions prefill;
  std::vector<Batch> batches;
  ProgressBar bar;
  uint64_t computed = 0;  ///< tokens that the model was run over by this process
};

/// Writes keys, values and queries of a batch of documents.
class KvSink final : public PrefillSink {
 public:
  KvSink(const Dump& dump, KvWriter& writer) : dump_(dump), writer_(writer) {}

  /// first_row: that of the batch in the file.
  void start_batch(std::span<const uint64_t> offsets, uint64_t first_row) {
    states_.assign(offsets.size() - 1, {});
    offsets_.assign(offsets.begin(), offsets.end());
    first_row_ = first_row;
    wanted_.clear();
    if (!dump_.queries.any()) return;
    for (size_t d = 0; d + 1 < offsets.size(); ++d)
      for (uint64_t t = offsets[d]; t < offsets[d + 1]; ++t)
        if (dump_.queries.wants(t - offsets[d], offsets[d + 1] - offsets[d])) wanted_.push_back(t);
  }

  void layer(const LayerChunk& chunk) override {
    if (!std::ranges::binary_search(dump_.layers, chunk.layer)) return;
    append(Side::key, chunk, dump_.options.pre_rope ? chunk.key_before_rope : chunk.key);
    append(Side::value, chunk, chunk.value);
    const auto queries = dump_.options.pre_rope ? chunk.query_before_rope : chunk.query;
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

  void state(int layer, size_t document, std::span<const float> state) override {
    std::ranges::move(tensors_of_state(dump_.model.config(), layer, state),
                      std::back_inserter(states_[document]));
  }
  /// Writes the states of the batch. first: number of its first document in the file.
  void end_batch(size_t first) {
    for (size_t i = 0; i < states_.size(); ++i) writer_.set_state(first + i, states_[i]);
  }

 private:
  /// rows: those of the chunk's tokens; the ones that the layer stores are written.
  void append(Side side, const LayerChunk& chunk, MatrixView<const float> rows) {
    const WindowLayers windows = dump_.options.window_layers;
    if (windows == WindowLayers::keep) return writer_.append(side, chunk.layer, rows);
    for (size_t d = 0; d + 1 < offsets_.size(); ++d) {
      const uint64_t length = offsets_[d + 1] - offsets_[d];
      const uint64_t stored = tokens_kept(windows, dump_.model.config(), chunk.layer, length);
      const uint64_t from = std::max<uint64_t>(offsets_[d + 1] - stored, chunk.first),
                     to = std::min<uint64_t>(offsets_[d + 1], chunk.first + rows.rows());
      if (from < to) writer_.append(side, chunk.layer, rows.rows(from - chunk.first, to - from));
    }
  }

  const Dump& dump_;
  KvWriter& writer_;
  std::vector<uint64_t> offsets_;  // of the batch
  uint64_t first_row_ = 0;
  std::vector<uint64_t> wanted_;                  // rows of the batch whose queries are stored, ascending
  std::vector<std::vector<StateTensor>> states_;  // of the batch's documents
};

void write_batches(Dump& dump, const WorkRange& range, OutputFile& output) {
  std::optional<DType> query_type;
  if (dump.queries.any()) query_type = dump.options.dtype;
  if (dump.growing) query_type = dump.growing->kv().query_dtype();
  KvWriter writer = dump.in_place()
                        ? KvWriter(output, dump.growing->kv())
                        : KvWriter(output, dump.info, dump.options.dtype, dump.layers, query_type);
  KvSink sink(dump, writer);
  const Documents table = dump.documents_of(range);
  uint64_t done = 0;
  size_t number = 0;
  const size_t before = dump.in_place() ? dump.growing->kv().documents().count() : 0;
  const auto computed = static_cast<uint64_t>(std::max<int64_t>(now(), 0));
  writer.expect(table);
  for (size_t b = range.first; b < range.end; ++b) {
    const Batch& batch = dump.batches[b];
    std::vector<uint32_t> tokens;
    std::vector<uint64_t> offsets = {0};
    for (size_t i = batch.first; i < batch.end; ++i) {
      const Document& document = dump.documents[i];
      std::vector<uint64_t> positions(document.tokens.size());
      std::iota(positions.begin(), positions.end(), uint64_t{0});
      DocumentFacts facts = table.facts_of(number++);
      facts.time = computed;
      writer.add_document(
          document.name, document.tokens, positions,
          left_out_of(dump.model.config(), dump.options.window_layers, document.tokens.size()), facts);
      tokens.insert(tokens.end(), document.tokens.begin(), document.tokens.end());
      offsets.push_back(tokens.size());
    }
    sink.start_batch(offsets, (dump.in_place() ? dump.tokens_before : 0) + done);
    dump.model.prefill({tokens, offsets}, dump.prefill, sink, [&](double part, double, std::string_view) {
      dump.bar.update(static_cast<double>(done) + part, static_cast<double>(table.tokens()));
    });
    sink.end_batch(before + number - (batch.end - batch.first));
    done += batch.tokens;
  }
  // The device that computed is known only now.
  if (dump.computed == 0) dump.options.common.record_device(dump.command);
  dump.computed += table.tokens();
  writer.finish(dump.provenance());
}

/// Writes the cache that grows without the documents that give way to new ones, and the new ones behind them, in one file.
void dump_replacing(Dump& dump, OutputFile& output) {
  OutputFile added(dump.options.output.path, true);  // never committed, so that it vanishes
  write_batches(dump, {0, dump.batches.size()}, added);
  copy_replacing(dump.names, dump.growing->kv().name(), added.path(), output, dump.provenance());
}

void declare(Command& command, DumpOptions& options) {
  command.describe(
      "--model PATH (--text PATH ... | --tokens FILE) [options] -o KV",
      "Runs a model over text and stores the keys and values of every layer, token by token, as the model "
      "computes them: what a serving engine holds in its cache after reading the text. Models: Llama, "
      "Mistral, Mixtral, Qwen, LFM2, Gemma, GPT-2, GPT-NeoX, gpt-oss, Granite, OLMo 2, Phi, SmolLM3, StarCoder2 and DeepSeek (the man "
      "page says which of them) as Hugging Face directories or GGUF files, whose quantized weights stay as they are. Every text file is a "
      "document; --chunk cuts long ones.",
      "kvcodec dump-kv --model DIR --text docs/ README.md --chunk 512 -o kv.h5\n"
      "kvcodec dump-kv --model DIR --tokens ids.txt --queries every:16 -o kv.h5");
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
  command.options(options.output_fields(), {{"queries", "WHICH"}});
  options.layers.declare(command);
  declare_compute(command, options.compute);
  options.common.declare(command);
}

/// The files that are read, except those of the model's folder.
std::vector<std::string> inputs_of(const DumpOptions& options) {
  std::vector<std::string> read = text_files(options.texts);
  read.insert(read.end(), {options.model, options.tokens});
  return read;
}

/// Writes the cache in pieces, some of which may exist already.
Pieces write_in_pieces(Dump& dump, OutputFile& output) {
  const DumpOptions& options = dump.options;
  uint64_t of_token = 0;
  for (const int layer : dump.layers)
    of_token += dump.info.layer_shape(layer).width() * size_of(options.dtype);
  const auto bytes =
      mapped<uint64_t>(dump.batches, [&](const Batch& batch) { return batch.tokens * of_token; });
  auto wanted = mapped<Piece>(cut_work(bytes, options.resume.piece_bytes()), [&](const WorkRange& range) {
    return Piece{range, dump.documents_of(range)};
  });
  Pieces pieces(dump.command, options.common, options.output, inputs_of(options), dump.info,
                std::move(wanted));
  pieces.write([&](const WorkRange& range, OutputFile& piece) { write_batches(dump, range, piece); },
               dump.bar, output);
  return pieces;
}

/// of_file: facts of a file that grew, for JSON.
std::string summary(const Dump& dump, double seconds, const Measures& of_file) {
  const uint64_t bytes = file_bytes(dump.options.output.path);
  Measures measures = {word("output", {"cache"}, dump.options.output.path),
                       {"model", to_json(dump.info), {"model"}, dump.info.model},
                       number_of("documents", {"documents"}, dump.documents_before + dump.documents.size()),
                       number_of("tokens", {"tokens"}, dump.tokens_before + dump.tokens()),
                       layers_measure(dump.layers),
                       word("dtype", {"dtype"}, name_of(dump.options.dtype)),
                       {"file_bytes", bytes, {"file"}, size_text(bytes)},
                       time_measure(seconds),
                       rounded(nullptr, {"tokens/s"}, static_cast<double>(dump.computed) / seconds, 3)};
  if (dump.growing) {
    measures.push_back({"documents_added", dump.documents.size()});
    measures.push_back({"tokens_added", dump.computed});
  }
  measures = joined(joined(measures, of_file), dump.names.measures());
  return one_row(measures, dump.options.common.json);
}

std::string dump_kv(Command& command) {
  DumpOptions options;
  declare(command, options);
  command.parse();
  const bool appends = !options.append.empty();  // the file that grows is the output, and lists its documents
  for (const char* fixed : {"dtype", "layers", "pre-rope"})
    if (appends && command.given(fixed))
      throw usage_error("--append goes on as {} was made; leave out --{}", options.append, fixed);
  for (const char* of_new : {"output", "resume", "skip-existing"})
    if (appends && command.given(of_new))
      throw usage_error(
          "--append adds to {} in place; leave out --{}. To keep that file as it is, dump to another and join both by "
          "kvcodec cat",
          options.append, of_new);
  if (appends) options.output.path = options.append, options.output.in_place = true;
  if (options.model.empty())
    throw usage_error("no model is named; give its directory or GGUF file with --model");
  if (options.texts.empty() == options.tokens.empty())
    throw usage_error("give either --text or --tokens{}", options.texts.empty() ? "" : ", not both");
  options.check_files(command, inputs_of(options), true);
  (void)options.shard.shard();
  options.resume.check(command, options.output, inputs_of(options));
  QueryChoice queries = parse_queries(options.queries);
  if (std::string report; options.output.made_before(command, options.common, inputs_of(options), report))
    return report;

  const Stopwatch watch;
  const std::unique_ptr<ModelFiles> files = open_model(options.model);
  const ModelConfig& config = files->description().config;
  std::vector<int> all(static_cast<size_t>(config.num_layers));
  std::iota(all.begin(), all.end(), 0);
  std::erase_if(all, [&](int layer) { return !config.has_cache(layer); });  // they keep no keys and values
  auto layers = options.layers.choose(all, options.model);
  std::optional<GrowingCache> growing;
  if (appends) {
    growing.emplace(options.output, options.common);
    // The cache continues with its own settings; --queries and --window-layers may differ for the added documents.
    const KvReader& kv = growing->kv();
    options.dtype = kv.dtype();
    options.pre_rope = growing->before_rope();
    if (!command.given("window-layers") && !kv.documents().whole())
      options.window_layers = WindowLayers::trim;
    if (!kv.query_dtype() && command.given("queries") && queries.any())
      throw usage_error("{}: has no queries; leave out --queries", kv.name());
    if (!kv.query_dtype()) queries = {};
    layers = growing->kv().layers();
  }
  std::optional<Dump> dump;
  std::optional<Pieces> pieces;
  const auto load = [&] {
    dump.emplace(command, options, queries, *files, layers, growing ? &*growing : nullptr);
  };
  if (growing) load();  // decides whether the file is changed in place
  return run_to_file(
      options.output,
      [&](OutputFile& output) {
        if (!dump) load();
        if (options.resume.resume && !dump->documents.empty())
          pieces = write_in_pieces(*dump, output);
        else if (dump->names.replaces() && growing)
          dump_replacing(*dump, output);
        else if (!growing || !dump->documents.empty())
          write_batches(*dump, {0, dump->batches.size()}, output);
        if (growing) growing->close();
        return true;
      },
      [&](bool) {
        if (pieces) pieces->remove();
        Measures of_file;
        if (growing) {
          of_file = note_spare(options.common, options.append, list_documents(options.append));
          if (options.common.note_journal(options.append)) of_file.push_back({"in_journal", true});
        }
        return summary(*dump, watch.seconds(), of_file);
      },
      growing ? &growing->held() : nullptr, dump && dump->in_place());
}

}  // namespace

CommandEntry dump_kv_command() {
  return {CommandGroup::prepare, 1, "dump-kv", "run a model over text and store its keys and values",
          dump_kv};
}

}  // namespace kvcodec::cli
