#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "cli/codecs/coding.hpp"
#include "cli/frame/common.hpp"
#include "cli/inputs/training.hpp"
#include "lib/engine/engine.hpp"
#include "lib/metrics/rate.hpp"
#include "lib/rvq/codec/book.hpp"
#include "lib/rvq/train.hpp"

namespace kvcodec::cli {
namespace {

// This many first tokens of a document have keys unlike all others, for which entries would be wasted. The paper keeps them
// exactly; the codec by default only the first one.
constexpr uint64_t kSinks = 4;

// The probe quantizer: enough to tell easy dimensions from hard ones, in a few seconds.
constexpr size_t kProbeVectors = 32768, kProbeCodebooks = 4, kProbeEntries = 256;
constexpr int64_t kProbeEpochs = 4;

struct TrainRvqOptions final : TrainingOptions {
  std::string preset = "small";
  int64_t vectors = 131072;  ///< 512 for each of 256 entries; codes of other text gain little from more
  bool stages = false;
  RvqBookOptions book;
  RvqTrainOptions training;

  std::vector<OptionField> fields() override {
    std::vector<std::string> names;
    std::string help =
        "numbers and sizes of codebooks, the method and how it learns, where they are not given one by one:";
    for (const RvqPreset& preset_of : rvq_presets()) {
      names.emplace_back(preset_of.name);
      help += fmt::format(" {} ({});", preset_of.name, preset_of.summary);
    }
    help.pop_back();
    return {
        {.name = "preset", .help = help, .target = &preset, .choices = names},
        {"vectors",
         "train on a sample of about N vectors, in runs of tokens spread evenly over the documents; 0 = "
         "all. They are held in memory",
         &vectors, 0},
        {"resume",
         "go on with the training of these codebooks, on the same data; their options hold, and only "
         "--epochs and --refits may be given anew",
         &resume},
        rope_field("codebooks"),
        weights_field("codebooks"),
        {"stages", "show every codebook: what it leaves, how many entries it uses", &stages},
    };
  }
};

/// Layers of one kind, and their codebooks.
struct RvqKind {
  std::vector<int> layers;  ///< of the kind
  std::vector<int> chosen;  ///< of those, to train on
  std::vector<Run> runs;
  RvqBook book = {};
};

/// The vectors of one side: all heads of all chosen layers of the tokens. Each rank reads its share of the tokens.
Matrix<float> load_vectors(const TrainedRows& rows, const RvqKind& kind, Side side, const Team& team) {
  const ModelInfo& model = kind.runs.front().kv->model();
  const std::vector<int>& layers = kind.chosen;
  const LayerWeights& weights = kind.book.weights;
  const auto heads = as_size(model.layer_shape(layers.front()).heads), d = kind.book.dims(side);
  const RunTokens tokens(rows, kind.runs);
  const size_t count = tokens.count();
  Matrix<float> vectors(count * layers.size() * heads, d);
  const TeamShare own = team.share(count);
  for (size_t i = 0; i < layers.size(); ++i) {
    const MatrixView<float> of_layer(vectors.data() + i * count * heads * d, count, heads * d);
    const MatrixView<float> out = of_layer.rows(own.begin, own.count());
    tokens.read(group_shape(model, {layers[i]}, side), own.begin, out);
    const float scale = 1 / weights.error_scale(place_in_kind(kind.layers, layers[i]), side);
    if (!weights.alike())
      for (size_t t = 0; t < out.rows(); ++t)
        for (float& value : out.row(t)) value *= scale;
    team.gather(std::span(of_layer.data(), count * heads * d), count);
  }
  return vectors;
}

/// Errors and energies of the dimensions of keys, measured with a small quantizer of all of them.
void probe(const Matrix<float>& keys, int64_t seed, RvqBook& rvq, bool quiet, const RvqTrainHelp& help) {
  const size_t count = std::min(keys.rows(), kProbeVectors);
  Matrix<float> sample(count, keys.cols());
  for (size_t i = 0; i < count; ++i)
    std::ranges::copy(keys.row(i * keys.rows() / count), sample.row(i).begin());
  RvqTrainOptions options;
  options.method = RvqMethod::kmeans, options.epochs = kProbeEpochs, options.refits = 0, options.seed = seed;
  Codebooks books(kProbeCodebooks, kProbeEntries, keys.cols());
  RvqTrainState state;
  ProgressBar bar("train-rvq: which dimensions are hard", "codebooks", quiet);
  train_codebooks(sample, options, books, state, bar.callback(), help);
  rvq.dimension_error = column_errors(books, sample, 1);
  rvq.dimension_energy.assign(keys.cols(), 0);
  for (size_t i = 0; i < count; ++i)
    for (size_t j = 0; j < keys.cols(); ++j)
      rvq.dimension_energy[j] += double{sample(i, j)} * double{sample(i, j)} / static_cast<double>(count);
}

struct PartResult {
  const RvqKind* kind;
  RvqPart part;
  size_t vectors = 0;
  double seconds = 0;
};

/// The error that all codebooks together leave after that epoch; NaN if there is none.
double left_of(const RvqTrainState& state, size_t epoch) {
  return epoch < state.loss.size() ? state.loss[epoch].back() : std::numeric_limits<double>::quiet_NaN();
}

std::string stages_text(const std::vector<RvqKind>& kinds) {
  MeasureTable table("codebook");
  for (const RvqKind& kind : kinds)
    for (const RvqPart part : kRvqParts) {
      const RvqBook& rvq = kind.book;
      const RvqTrainState& state = rvq.of(part).state;
      for (size_t s = 0; s < rvq.stages(part); ++s)
        table.row(fmt::format("{} {}", name_of(part), s),
                  {rounded(nullptr, {"error left", "first epoch"}, state.loss.front()[s], 3),
                   rounded(nullptr, {"error left", "last epoch"}, state.loss.back()[s], 3),
                   number_of(nullptr, {"entries"}, rvq.entries(part)),
                   rounded(nullptr, {"perplexity"}, state.perplexity(s), 3),
                   number_of(nullptr, {"dead"}, state.dead_entries(s))});
    }
  return "\n" + table.text();
}

/// Bits per value of quantized keys and values, with packed ids.
double bits_per_value(const RvqBook& rvq, std::span<const RvqPart> parts) {
  double bits = 0;
  for (const RvqPart part : parts)
    if (rvq.stages(part) > 0)
      bits += static_cast<double>(rvq.stages(part)) *
              std::ceil(std::log2(static_cast<double>(std::max<size_t>(rvq.entries(part), 2))));
  return bits / static_cast<double>(rvq.dims(parts.front() == RvqPart::value ? Side::value : Side::key));
}

Measures measures_of(const RvqBook& rvq, const PartResult& result) {
  const RvqTrainState& state = rvq.of(result.part).state;
  double least = std::numeric_limits<double>::infinity();
  size_t dead = 0;
  Json stages = Json::array();
  for (size_t s = 0; s < rvq.stages(result.part); ++s) {
    least = std::min(least, state.perplexity(s));
    dead += state.dead_entries(s);
    Json loss = Json::array();
    for (const auto& epoch : state.loss) loss.push_back(epoch[s]);
    stages.push_back({{"loss", loss}, {"perplexity", state.perplexity(s)}, {"dead", state.dead_entries(s)}});
  }
  const std::string refitted = state.refit_loss.empty() ? "-" : significant(state.refit_loss.back(), 3);
  return {{"dimensions", rvq.width(result.part)},
          number_of("codebooks", {"number"}, rvq.stages(result.part)),
          number_of("entries", {"entries"}, rvq.entries(result.part)),
          number_of(nullptr, {"dims"}, rvq.width(result.part)),
          number_of("vectors", {"vectors"}, result.vectors),
          number_of("epochs", {"epochs"}, state.epochs),
          {"refits", state.refits},
          rounded("loss_first", {"error left", "first"}, left_of(state, 0), 3),
          rounded("loss_last", {"error left", "last"}, left_of(state, state.loss.size() - 1), 3),
          {"refit_loss", state.refit_loss, {"error left", "refitted"}, refitted},
          {"stages", stages},
          rounded(nullptr, {"perplexity", "least"}, least, 3),
          number_of(nullptr, {"dead", "entries"}, dead),
          time_measure(result.seconds)};
}

std::string summary(const Command& command, const std::vector<RvqKind>& kinds,
                    const std::vector<PartResult>& results, const TrainRvqOptions& options,
                    const Book& book) {
  const RvqBook& rvq = kinds.front().book;
  const std::vector<int> high(rvq.split.high.begin(), rvq.split.high.end());
  const double key_bits = bits_per_value(rvq, std::array{RvqPart::key_low, RvqPart::key_high});
  const double value_bits = bits_per_value(rvq, std::array{RvqPart::value});
  const double saved =
      saved_by_ids(rvq.dims(Side::key) + rvq.dims(Side::value),
                   rvq.stages(RvqPart::value) + rvq.stages(RvqPart::key_low) + rvq.stages(RvqPart::key_high));
  Json json = made_by(command);
  json.update({{"output", options.output.path},
               {"digest", book.digest()},
               {"book_bytes", book.size_bytes()},
               {"bits_per_value", {{"key", key_bits}, {"value", value_bits}}},
               {"saved_by_the_papers_formula", saved},
               {"split", name_of(rvq.options.split)},
               {"high_dimensions", high}});
  MeasureTable table("codebooks");
  for (const PartResult& result : results) {
    const Measures measures = measures_of(result.kind->book, result);
    std::string part(name_of(result.part));  // of several kinds with their layers: "value 0-4"
    if (kinds.size() > 1) part += " " + ranges_text(result.kind->layers);
    json[part] = json_of(measures);
    table.row(part, measures);
  }
  json.update({{"dimension_error", rvq.dimension_error}, {"dimension_energy", rvq.dimension_energy}});
  if (options.common.json) return text_of(json);
  return table.text() + (options.stages ? stages_text(kinds) : "") +
         fmt::format(
             "high dimensions of keys: {}\n"
             "bits per value: {:.3f} of keys, {:.3f} of values; codebooks against dimensions, as the paper "
             "counts: {:.1f}% saved\n{}: {}, digest {}\n",
             high.empty() ? "none" : ranges_text(high), key_bits, value_bits, 100 * saved,
             options.output.path, size_text(book.size_bytes()), book.digest());
}

std::vector<Run> choose_vectors(const std::vector<KvReader>& files, const RvqKind& kind,
                                const TrainRvqOptions& options) {
  const LayerShape shape = files.front().model().layer_shape(kind.layers.front());
  const auto per_token = static_cast<uint64_t>(shape.heads) * kind.chosen.size();
  const auto tokens = (static_cast<uint64_t>(options.vectors) + per_token - 1) / per_token;
  auto runs = choose_runs(files, {kind.layers, options.documents, tokens, kSinks});
  if (runs.empty())
    throw bad_input("{}: there are no tokens to train on, beside the first {} of each document",
                    files.front().name(), kSinks);
  uint64_t chosen = 0;
  for (const Run& run : runs) chosen += run.count;
  // Vectors, their residuals, and ids and sums during training.
  const uint64_t needed = 4 * chosen * per_token * static_cast<uint64_t>(shape.key_dim) * sizeof(float);
  if (needed > options.common.memory_bytes())
    throw usage_error("{} vectors take {} while training; take fewer with --vectors, or give more --memory",
                      grouped(chosen * per_token), size_text(needed));
  return runs;
}

/// Finds the high dimensions of keys, and makes the codebooks that depend on them.
void begin(RvqBook& rvq, const Matrix<float>& keys, const TrainRvqOptions& options,
           const RvqTrainHelp& help) {
  const auto d = as_size(rvq.head_dim);
  const SplitBy by = rvq.options.split;
  probe(keys, rvq.training.seed, rvq, options.common.quiet, help);
  const size_t pairs =
      rvq.options.high_dims < 0 ? paper_high_pairs(d) : static_cast<size_t>(rvq.options.high_dims) / 2;
  if (pairs > d / 2 || (2 * pairs == d && by != SplitBy::none))
    throw usage_error("--high-dims is {}; heads have {} dimensions, and some must be low", 2 * pairs, d);
  rvq.split = split_dimensions(by, rvq.dimension_error, d, pairs);
  for (const RvqPart part : kRvqParts)
    rvq.of(part).books = Codebooks(rvq.stages(part), rvq.entries(part), rvq.width(part));
  // With so few data every vector gets its own entry, and the loss has no meaning.
  size_t largest = 0;
  for (const RvqPart part : kRvqParts)
    if (rvq.stages(part) > 0) largest = std::max(largest, rvq.entries(part));
  if (keys.rows() < 16 * largest)
    options.common.note(
        "{} vectors for codebooks of {} entries; there should be dozens of vectors for each entry",
        grouped(keys.rows()), grouped(largest));
}

void train_parts(RvqKind& kind, const TrainedRows& rows, const TrainRvqOptions& options, const Team& team,
                 std::vector<PartResult>& results) {
  RvqBook& rvq = kind.book;
  Engine* const engine = options.common.engine();
  const auto device = engine && team.size() == 1 ? engine->make<RvqTrainEngine>() : nullptr;
  const RvqTrainHelp help{device.get(), team};
  for (const Side side : kSides) {
    if (rvq.dims(side) == 0) continue;
    const Matrix<float> vectors = load_vectors(rows, kind, side, team);
    if (side == Side::key && options.resume.empty()) begin(rvq, vectors, options, help);
    for (const RvqPart part : kRvqParts) {
      if ((part == RvqPart::value) != (side == Side::value) || rvq.stages(part) == 0) continue;
      const Stopwatch watch;
      auto& [books, state] = rvq.of(part);
      const auto& dimensions = part == RvqPart::key_low ? rvq.split.low : rvq.split.high;
      Matrix<float> columns(side == Side::key ? vectors.rows() : 0, dimensions.size());
      for (size_t i = 0; i < columns.rows(); ++i)
        for (size_t j = 0; j < columns.cols(); ++j) columns(i, j) = vectors(i, dimensions[j]);
      const MatrixView<const float> trained = side == Side::key ? columns.view() : vectors.view();
      ProgressBar bar(fmt::format("train-rvq {}", name_of(part)), "codebooks", options.common.quiet);
      train_codebooks(trained, rvq.training, books, state, bar.callback(), help);
      results.push_back({&kind, part, trained.rows(), watch.seconds()});
    }
  }
}

std::string train_rvq(Command& command) {
  TrainRvqOptions options;
  const std::string preset = command.peek("preset");
  if (const RvqPreset* found = find_rvq_preset(preset.empty() ? options.preset : preset))
    apply_preset(*found, options.book, options.training);
  command.describe(
      "KV ... [options] -o CODEBOOKS",
      "Learns the codebooks that the codec rvq needs, from caches of one model: the vector of a "
      "token's head becomes a sum of entries, one of each codebook. Values have one set of codebooks; "
      "keys have two, since dimensions that a probe quantizer reconstructs badly are quantized apart. "
      "The error left is error energy over energy of the vectors. One set serves all layers and "
      "heads, and any cache of the same model.",
      "kvcodec train-rvq kv.h5 -o codebooks.h5\n"
      "kvcodec train-rvq kv.h5 --preset medium --split rope --stages -o codebooks.h5");
  options.declare_files(command, "file of codebooks to write", "CODEBOOKS");
  command.group("Codebooks");
  command.options(options.book);
  command.group("Training");
  command.options(options.training);
  options.parse(command, true);
  options.book.check();
  options.training.check();

  TrainingFiles files = open_training_files(options.inputs, command.team());
  const KvReader& first = files.caches.front();
  const ModelInfo& model = first.model();
  const LayerKinds all_kinds = kinds_of_layers(files.caches);
  const auto layers = options.layers.choose(first.layers(), first.name());
  const LayerWeights weights = options.read_weights(first);
  std::vector<Book> stored;
  if (!options.resume.empty()) {
    const BookFile file = read_book(options.resume, "codebooks", true);
    stored = resumed_books(file.book, all_kinds, model.num_layers, options.resume);
    files.histories.push_back(file.type.history);
    options.check_resumed_weights();
  } else if (options.rope == RopeChoice::undo && options.book.split == SplitBy::rope) {
    throw usage_error(  // no pair is turned faster
        "--split is rope, which sorts dimensions by how fast they are turned, but --rope undo turns keys "
        "back: take measured or none");
  }
  std::vector<RvqKind> kinds;
  for (size_t i = 0; i < all_kinds.size(); ++i) {
    RvqKind kind{.layers = all_kinds[i], .chosen = {}, .runs = {}};
    std::ranges::set_intersection(layers, kind.layers, std::back_inserter(kind.chosen));
    if (kind.chosen.empty()) continue;
    RvqBook& rvq = kind.book;
    if (!options.resume.empty()) {
      rvq = with_context(options.resume, [&] { return rvq_book_from(stored[i], true); });
      resume_options(command, options.training, rvq.training, {"epochs", "refits"}, options.resume);
      resume_options(command, options.book, rvq.options, {}, options.resume);
      rvq.rope = resume_rope(command, options.rope, rvq.rope, options.resume);
      rvq.training.check();
      with_context(options.resume, [&] { rvq.weights.check_layers(static_cast<int>(kind.layers.size())); });
    } else {
      const LayerShape shape = model.layer_shape(kind.layers.front());
      rvq.options = options.book;
      rvq.training = options.training;
      rvq.rope = options.rope;
      rvq.weights = weights.of(kind.layers);
      rvq.head_dim = shape.key_dim, rvq.value_dim = value_dim_of(shape);
    }
    kind.runs = choose_vectors(files.caches, kind, options);
    const std::string source = source_digest(kind.runs, kind.chosen);
    if (!options.resume.empty() && source != rvq.source)
      throw bad_input(
          "{}: they were trained on other data; --resume wants the same KV files, --layers, --documents and "
          "--vectors",
          options.resume);
    rvq.source = source;
    kinds.push_back(std::move(kind));
  }
  const TrainedRows rows(files.caches, kinds.front().book.rope);

  Book book;
  const auto train = [&] {
    std::vector<PartResult> results;
    for (RvqKind& kind : kinds) train_parts(kind, rows, options, command.team(), results);
    return results;
  };
  const auto write = [&](OutputFile& output, const std::vector<PartResult>&) {
    LayerKinds trained;
    std::vector<Book> books;
    for (const RvqKind& kind : kinds) {
      trained.push_back(kind.layers);
      books.push_back(to_book(kind.book));
    }
    book = join_kinds(trained, std::move(books), model.num_layers);
    write_book(output, book, model, command.provenance(merged_history(files.histories)));
  };
  return train_to_file(command.team(), options.output, train, write,
                       [&](const std::vector<PartResult>& results) {
                         return summary(command, kinds, results, options, book);
                       });
}

}  // namespace

CommandEntry train_rvq_command() {
  return {CommandGroup::prepare, 4, "train-rvq", "learn codebooks for the codec rvq", train_rvq, true};
}

}  // namespace kvcodec::cli
