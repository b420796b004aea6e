#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/frame/common.hpp"
#include "cli/inputs/cache_source.hpp"
#include "cli/inputs/documents.hpp"
#include "cli/inputs/model_runner.hpp"
#include "lib/core/checked.hpp"
#include "lib/linalg/hadamard.hpp"

namespace kvcodec::cli {
namespace {

// Whether a cache is the one that a model computes: its first keys and values are computed again ---------

/// Enough tokens for a median, and layers in which errors of a quantized cache, or of a model's other quantization, have not added up.
constexpr size_t kTokens = 16;
constexpr int kLayers = 4;
/// The median of tokens' relative errors. Keys in 2 bits, the coarsest that programs write, are at .3; other keys at 1 and more.
constexpr double kLimit = 0.5;

struct Computed {
  Matrix<float> sides[2], keys_before_rope;
};

class Collector final : public PrefillSink {
 public:
  std::vector<Computed> layers;

  void layer(const LayerChunk& chunk) override {
    const auto copy = [](MatrixView<const float> rows) {
      Matrix<float> kept(rows.rows(), rows.cols());
      for (size_t i = 0; i < rows.rows(); ++i) std::ranges::copy(rows.row(i), kept.row(i).begin());
      return kept;
    };
    layers.push_back(
        {.sides = {copy(chunk.key), copy(chunk.value)}, .keys_before_rope = copy(chunk.key_before_rope)});
  }
};

/// Number of the document's first tokens that can be computed: their ids are known, and their positions are 0, 1, 2, …
size_t first_tokens(const interop::ForeignDocument& document) {
  size_t count = 0;
  while (count < std::min(kTokens, document.tokens.size()) && document.positions[count] == count) ++count;
  return count;
}

double median_error(const Matrix<float>& found, const Matrix<float>& expected) {
  std::vector<double> errors;
  for (size_t i = 0; i < expected.rows(); ++i) {
    double wrong = 0, all = 0;
    for (size_t j = 0; j < expected.cols(); ++j) {
      const double difference = double{found(i, j)} - double{expected(i, j)};
      wrong += difference * difference, all += double{expected(i, j)} * double{expected(i, j)};
    }
    errors.push_back(std::sqrt(wrong / std::max(all, 1e-30)));
  }
  const auto middle = errors.begin() + std::ssize(errors) / 2;
  std::ranges::nth_element(errors, middle);
  return *middle;
}

/// Names the change that makes the rows those that were computed, as the end of a sentence; empty if no known one does.
std::string cure(const Matrix<float>& found, const Computed& computed, Side side, const LayerShape& shape) {
  const Matrix<float>& expected = computed.sides[side == Side::value];
  const auto dims = as_size(shape.stored_dim(side));
  const auto fits = [&](const auto& change) {
    Matrix<float> changed = found;
    change(changed.view());
    return median_error(changed, expected) < kLimit;
  };
  // Blocks are of the order in the file, which import may have changed.
  for (size_t block = dims & (~dims + 1); block >= 16; block /= 2)
    for (const bool ordered : {false, true})
      if (fits([&](MatrixView<float> rows) {
            if (ordered) interop::order_pairs(PairOrder::neighbours, shape, rows);
            for (size_t i = 0; i < rows.rows(); ++i) hadamard(rows.row(i), block);
            if (ordered) interop::order_pairs(PairOrder::halves, shape, rows);
          }))
        return fmt::format("they are if Hadamard blocks of {} are undone: --rotated", block);
  if (side == Side::value) return "";
  for (const PairOrder order : {PairOrder::halves, PairOrder::neighbours})
    if (fits([&](MatrixView<float> rows) { interop::order_pairs(order, shape, rows); }))
      return fmt::format("they are with pairs of dimensions in the other order: --key-pairs {}",
                         name_of(order == PairOrder::halves ? PairOrder::neighbours : PairOrder::halves));
  if (median_error(found, computed.keys_before_rope) < kLimit)
    return "they are from before the rotary embedding";
  return "";
}

void compare(const interop::ForeignDocument& document, const ModelInfo& model,
             const std::vector<Computed>& computed) {
  for (int layer = 0; layer < static_cast<int>(computed.size()); ++layer) {
    const auto stored = document.layers.find(layer);
    if (stored == document.layers.end() || stored->second.rows < document.positions.size()) continue;
    const Computed& own = computed[as_size(layer)];
    const LayerShape shape = model.layer_shape(layer);
    for (const Side side : kSides) {
      const Matrix<float>& expected = own.sides[side == Side::value];
      if (shape.width(side) == 0) continue;
      if (shape.width(side) != expected.cols())
        throw bad_input("layer {} has {} of {} values, and the model {}", layer, name_of(side),
                        shape.width(side), expected.cols());
      Matrix<float> found(expected.rows(), expected.cols());
      stored->second.sides[side == Side::value](0, found.view());
      const double error = median_error(found, expected);
      if (error < kLimit) continue;
      const std::string how = cure(found, own, side, shape);
      throw bad_input(
          "document '{}', layer {}: the {}s are not those that the model {} computes (relative error {:.2g}); {}",
          document.name, layer, name_of(side), model.model, error,
          how.empty() ? "they are of another model, text or layout; --no-probe imports them nevertheless"
                      : how);
    }
  }
}

/// Computes the first tokens of a document again, in the model's first layers, and compares. Returns why it cannot compare them;
/// std::nullopt: the cache is the model's. Throws Error(bad_input) if it is not, naming what differs, where that is known: another
/// order of pairs, Hadamard blocks, keys from before the rotary embedding.
std::optional<std::string> probe_cache(const interop::ForeignCache& cache, ModelFiles& files,
                                       const CommonOptions& common) {
  const auto document = std::ranges::find_if(
      cache.documents, [](const interop::ForeignDocument& one) { return first_tokens(one) > 0; });
  if (document == cache.documents.end())
    return "no document has token ids and begins at position 0; --ids gives ids";
  std::optional<LlamaModel> model;
  try {
    model.emplace(make_model(files, common));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_input) throw;
    return fmt::format("the model cannot run: {}", error.what());
  }
  const size_t count = first_tokens(*document);
  const std::vector<uint64_t> offsets{0, count};
  Collector collector;
  PrefillOptions options;
  options.before_rope = true;
  options.layers = std::min(kLayers, model->config().num_layers);
  model->prefill({std::span(document->tokens).first(count), offsets}, options, collector);
  compare(*document, cache.model, collector.layers);
  return std::nullopt;
}

// The command -----------------------------------------------------------------------------------------

struct Import final : CommandOptions {
  std::vector<std::string> files;
  std::string from, model, ids, rotated, window_layers;
  int64_t heads = 0, head_dim = 0, layer_count = 0, page = 0;
  std::optional<DType> dtype;
  bool replace = false, probe = true;
  interop::ImportOptions wanted;

  std::vector<OptionField> fields() override {
    return {
        {.name = "from",
         .help = "what the files are, where their content does not say it for certain",
         .target = &from,
         .choices = format_names()},
        {"model",
         "the model that the cache is of, a Hugging Face directory (config.json is enough) or a GGUF file: "
         "its name, query heads, rotary embedding and windows are taken from it",
         &model},
        {"ids", "token ids, where the files hold none: a text file with one document of ids per line", &ids},
        {.name = "dtype",
         .help = "element type of the output (default: the narrowest that holds all values as they are)",
         .target = &dtype,
         .choices = {"bf16", "f16", "f32"}},
        {"probe",
         "do not compute the first keys again with --model; without this option a cache that is not the model's is refused",
         &probe},
        replace_field(replace)};
  }
  std::vector<OptionField> shape_fields() {
    return {
        {"heads",
         "key/value heads, where a file has the values of all heads in a row (default: those of --model)",
         &heads, 1},
        {"head-dim", "dimensions of a head, for the same files (default: those of --model)", &head_dim, 1},
        {"layer-count", "layers, of raw pages and of chunks of a layer each (default: those of --model)",
         &layer_count, 1, 4096},
        {"layout",
         "axes of raw pages and of .npy files, slowest first: s side, l layer, b document, h head, t token, "
         "d dimension, as slthd; or a name: layer-first and page-first of sglang, v2-hnd, v2-nhd and "
         "separate of vllm-blocks",
         &wanted.layout},
        {"type",
         "elements, where a file does not say what they are: f32, f16, bf16, f64, e4m3 or e5m2 (default: "
         "bf16 of raw pages)",
         &wanted.type},
        {"page", "tokens of a raw page (default: as many as its bytes are)", &page, 1},
        {"rotated",
         "undo the Hadamard transform that llama.cpp applies to quantized caches, in blocks of K values of "
         "keys and V of values; 0 = not turned",
         &rotated},
        {.name = "key-pairs",
         .help =
             "how a key's dimensions lie that the rotary embedding turns together: half of them apart, or side by side, as "
             "in llama.cpp those of Llama (default: as the family of --model has them)",
         .target = &wanted.pairs},
        {"window-layers",
         "which layers have a sliding window, as 0-4,6, where a state of llama.cpp has two caches (default: "
         "those of --model)",
         &window_layers}};
  }
};

/// model: that of --model; nullptr without it.
interop::ImportOptions import_options(const Import& options, ModelFiles* model) {
  interop::ImportOptions wanted = options.wanted;
  wanted.heads = static_cast<int>(options.heads);
  wanted.head_dim = static_cast<int>(options.head_dim);
  wanted.layers = static_cast<int>(options.layer_count);
  wanted.page_tokens = static_cast<uint64_t>(options.page);
  wanted.rotated = parse_rotated(options.rotated);
  wanted.window_layers = parse_layers("--window-layers", options.window_layers);
  if (model) {
    const ModelConfig& config = model->description().config;
    wanted.model = model_info(options.model, model->description(), false);
    wanted.model->scores = text_of(score_forms(*model));
    wanted.windows = config.window;
    if (config.is_latent()) wanted.latent = config.value_dim();
  }
  if (!options.ids.empty())
    for (Document& document : read_token_lines(options.ids, "a list of token ids"))
      wanted.ids.push_back(std::move(document.tokens));
  return wanted;
}

/// Applies the rule to the documents of all files.
void take_documents(NameRule& rule, const CommonOptions& common,
                    std::vector<interop::ForeignDocument>& documents) {
  rule.keep(documents, 0, [&](const interop::ForeignDocument& document, size_t number) {
    return rule.takes(document.name, number, [&](size_t before) {
      const interop::ForeignDocument& other = documents[before];
      return !document.tokens.empty() && other.tokens == document.tokens &&
             other.positions == document.positions;
    });
  });
  rule.note(common);
}

std::vector<int> layers_of(const interop::ForeignCache& cache) {
  std::vector<int> layers;
  for (const auto& [layer, rows] : cache.documents.front().layers) layers.push_back(layer);
  return layers;
}

/// Returns the number of keys, of a token in a layer, that are nothing but zeros: no model computes such.
uint64_t write_cache(const interop::ForeignCache& cache, KvWriter& writer, uint64_t budget,
                     ProgressBar& bar) {
  uint64_t total = 0, done = 0, zeros = 0;
  for (const interop::ForeignDocument& document : cache.documents)
    total += document.positions.size() * document.layers.size();
  for (const interop::ForeignDocument& document : cache.documents) {
    DocumentFacts facts;
    if (!document.tokens.empty()) facts.digest = token_digest(document.tokens);
    facts.state = document.state;
    writer.add_document(document.name, document.tokens, document.positions, left_out_of(cache, document),
                        facts);
    for (const auto& [layer, rows] : document.layers) {
      const LayerShape shape = cache.model.layer_shape(layer);
      for (const Side side : kSides)
        if (const size_t width = shape.width(side); width > 0) {
          const auto limit = static_cast<uint64_t>(chunk_rows(budget, width * sizeof(float)));
          Matrix<float> buffer(static_cast<size_t>(std::min(limit, rows.rows)), width);
          for (uint64_t first = 0; first < rows.rows; first += limit) {
            const auto piece = buffer.view().rows(0, static_cast<size_t>(std::min(limit, rows.rows - first)));
            rows.sides[static_cast<size_t>(side)](first, piece);
            for (size_t i = 0; side == Side::key && i < piece.rows(); ++i)
              zeros += std::ranges::all_of(piece.row(i), [](float value) { return value == 0; });
            writer.append(side, layer, piece);
          }
        }
      done += document.positions.size();
      bar.update(static_cast<double>(done), static_cast<double>(total));
    }
  }
  return zeros;
}

std::string summary(const interop::ForeignCache& cache, const interop::ForeignFormat& format, DType dtype,
                    const Measures& counts, double seconds, const Import& options) {
  uint64_t tokens = 0;
  for (const interop::ForeignDocument& document : cache.documents) tokens += document.positions.size();
  const Measures measures{word("output", {"cache"}, options.output.path),
                          word("format", {"from"}, format.name),
                          number_of("documents", {"documents"}, cache.documents.size()),
                          number_of("tokens", {"tokens"}, tokens),
                          layers_measure(layers_of(cache)),
                          word("dtype", {"dtype"}, name_of(dtype)),
                          {"model", to_json(cache.model)},
                          {"notes", cache.notes},
                          time_measure(seconds)};
  return one_row(joined(measures, counts), options.common.json);
}

std::string import_cache(Command& command) {
  Import options;
  command.describe(
      "FILE ... [options] -o KV",
      "Reads the cache that another program saved and writes it as a kv file, which all other commands take. Sequences and "
      "batches become documents. What the files hold is taken over as it is, without loss; what they do not say has to be "
      "said by options.",
      "kvcodec import cache.safetensors -o kv.h5\n"
      "kvcodec import slot.bin --model model.gguf -o kv.h5\n"
      "kvcodec import pages/*.bin --from sglang --model DIR --ids ids.txt -o kv.h5");
  command.group("Input and output");
  command.inputs("FILE", "files of one format; of formats that cut a cache into files, in their order",
                 options.files);
  options.output.declare(command, "kv file to write");
  command.group("What the files are");
  command.options(options, {{"model", "PATH"}, {"ids", "FILE"}});
  command.group("What files do not say (each format takes some of these)");
  command.options(options.shape_fields(),
                  {{"rotated", "K,V"}, {"window-layers", "LIST"}, {"layout", "AXES"}});
  for (const char* name : {"layers", "documents"})
    command.refuse(name,
                   fmt::format("import takes whole files; choose --{} when you encode or decode", name));
  options.common.declare(command);
  command.parse();
  for (const std::string& file : options.files) {
    if (file == "-")
      throw usage_error("import cannot read standard input; save it to a file, and name that file");
    if (is_pipe(file))
      throw bad_input("{}: is a pipe, which import cannot read; save it to a file, and name that file", file);
  }

  std::vector<std::string> read = options.files;
  read.insert(read.end(), {options.ids, options.model});
  options.check_files(command, read, false);

  const Stopwatch watch;
  const interop::ForeignFormat& format = options.from.empty() ? interop::guess_format(options.files.front())
                                                              : interop::foreign_format(options.from);
  check_taken(command, options.shape_fields(), format.name, format.import_options);
  const auto model = options.model.empty() ? nullptr : open_model(options.model);
  const interop::ImportOptions wanted = import_options(options, model.get());
  interop::ForeignCache cache = format.open(options.files, wanted);
  interop::settle(cache, wanted, options.files.front());
  interop::settle_pairs(cache, format, wanted);
  NameRule rule(options.replace, options.output.path);
  take_documents(rule, options.common, cache.documents);
  if (model && options.probe) {
    const auto why_not =
        with_context(options.files.front(), [&] { return probe_cache(cache, *model, options.common); });
    if (why_not)
      cache.notes.push_back(fmt::format("the cache was not compared with the model: {}", *why_not));
    else
      cache.doubts.clear();
  }
  std::ranges::move(cache.doubts, std::back_inserter(cache.notes));
  for (const std::string& note : cache.notes) options.common.note("{}", note);
  const DType dtype = options.dtype.value_or(cache.dtype);
  return run_to_file(
      options.output,
      [&](OutputFile& output) {
        KvWriter writer(output, cache.model, dtype, layers_of(cache), std::nullopt);
        Documents documents;
        for (const interop::ForeignDocument& document : cache.documents)
          documents.add(document.name, document.positions.size(), left_out_of(cache, document));
        writer.expect(documents);
        ProgressBar bar("import", "tokens of layers", options.common.quiet);
        const uint64_t zeros = with_context(options.files.front(), [&] {
          return write_cache(cache, writer, chunk_budget(options.common.memory_bytes(), 0), bar);
        });
        if (zeros > 0)
          options.common.note(
              "{} of a token in a layer are all zeros, which no model computes: is a part missing?",
              counted(zeros, "key"));
        writer.finish(command.provenance());
        return zeros;
      },
      [&](uint64_t zeros) {
        const Measures counts = joined(Measures{{"zero_keys", zeros}}, rule.measures());
        return summary(cache, format, dtype, counts, watch.seconds(), options);
      });
}

}  // namespace

CommandEntry import_command() {
  return {CommandGroup::prepare, 2, "import", "read a cache that another program saved", import_cache};
}

}  // namespace kvcodec::cli
