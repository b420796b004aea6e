#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "cli/codecs/codec_spec.hpp"
#include "cli/codecs/coding.hpp"
#include "cli/frame/common.hpp"
#include "cli/inputs/training.hpp"
#include "lib/core/checked.hpp"
#include "lib/engine/engine.hpp"
#include "lib/sparse/codec/book.hpp"

namespace kvcodec::cli {
namespace {

struct TrainDictOptions final : TrainingOptions {
  Preset preset = Preset::best;
  int64_t max_tokens = 0;
  TrainOptions training;

  std::vector<OptionField> fields() override {
    return {
        {"preset",
         "values of options of the dictionary and its training that are not given: default, those that do best, or "
         "paper, those of SparseCache",
         &preset},
        {"max-tokens",
         "train on a sample of N tokens, in runs spread evenly over the documents (default: all)",
         &max_tokens, 1},
        {"resume",
         "go on with the training of this dictionary, on the same data; its options hold, and only "
         "--epochs, --steps, --seconds and --tolerance may be given anew",
         &resume},
        rope_field("dictionaries"),
        weights_field("dictionaries"),
    };
  }
};

struct DictData {
  const TrainDictOptions& options;
  const TrainedRows& rows;
  const ModelInfo& model;
  const Team& team;
  bool one_kind = true;
};

/// Layers of one kind, and their dictionaries.
struct DictKind {
  std::vector<int> layers;
  std::vector<std::vector<int>> groups;  ///< those to train on
  std::vector<Run> runs;
  LayerWeights weights;
  SparseBook book = {};
};

/// One side of the chosen tokens and of these groups of layers, which the trainer reads.
class KvSource final : public SignalSource {
 public:
  KvSource(const DictData& data, const DictKind& kind, std::vector<std::vector<int>> groups, Side side)
      : data_(data), kind_(kind), tokens_(data.rows, kind.runs), groups_(std::move(groups)), side_(side) {}

  SignalLayout layout() const override { return kind_.book.layout(side_); }
  size_t num_layers() const override { return kind_.layers.size(); }
  size_t groups() const override { return groups_.size(); }
  int first_layer(size_t group) const override { return place_in_kind(kind_.layers, groups_[group].front()); }
  uint64_t tokens() const override { return tokens_.count(); }
  std::vector<float> layer_scales() const override {
    return mapped<float>(numbers_below<int>(kind_.weights.layers()),
                         [&](int layer) { return kind_.weights.error_scale(layer, side_); });
  }

  void read(size_t group, uint64_t first, MatrixView<float> out) const override {
    tokens_.read(group_shape(data_.model, groups_[group], side_), first, out);
  }

 private:
  const DictData& data_;
  const DictKind& kind_;
  RunTokens tokens_;
  std::vector<std::vector<int>> groups_;
  Side side_;
};

/// Refuses before anything is allocated: all dictionaries stay in memory until the file is written, with the state from which their
/// training can be resumed.
void check_memory(const SignalSource& source, const TrainDictOptions& options, size_t parts) {
  const uint64_t memory = options.common.memory_bytes();
  const uint64_t count = parts * std::size(kSides);
  const uint64_t atom_bytes =
      static_cast<uint64_t>(options.training.atoms) * source.layout().signal_width() * sizeof(float);
  const uint64_t trained = checked_mul(count, trained_bytes(source, options.training), ErrorKind::usage);
  if (trained > memory)
    throw usage_error(
        "{} dictionaries of {} atoms, with the state of --optimizer {}, take {}, more than --memory ({}): take "
        "fewer --atoms{}",
        count, options.training.atoms, options.training.optimizer, size_text(trained), size_text(memory),
        trained > checked_mul(count, atom_bytes) ? ", or an optimizer that keeps less" : "");
}

/// steps_before: those of the training that was resumed.
Measures measures_of(const SparseBook::OneSide& trained, const SignalSource& source,
                     const TrainOptions& options, uint64_t steps_before, double seconds) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const auto& [dictionary, state] = trained;
  // The mean of the newest losses: a single batch is too noisy.
  const size_t newest = std::min(state.loss.size(), kStableSteps);
  const double recent =
      std::accumulate(state.loss.end() - static_cast<std::ptrdiff_t>(newest), state.loss.end(), 0.0) /
      static_cast<double>(newest);
  const uint64_t signals = source.tokens() * source.groups() * source.layout().signals_per_row();
  const char* const ended_by = state.stable                                   ? "stable loss"
                               : state.steps < planned_steps(source, options) ? "time"
                                                                              : "plan";
  return {number_of("atoms", {"atoms"}, dictionary.atoms.rows()),
          number_of("width", {"width"}, dictionary.atoms.cols()),
          number_of("signals", {"signals"}, signals),
          number_of("steps", {"steps"}, state.steps),
          {"steps_before", steps_before},
          rounded("loss_first", {"loss", "first"}, state.loss.empty() ? kNone : state.loss.front(), 3),
          rounded("loss_recent", {"loss", "now"}, recent, 3),
          rounded("loss_held_out", {"loss", "held out"},
                  state.validation.empty() ? kNone : state.validation.back(), 3),
          number_of("replaced", {"atoms", "replaced"},
                    std::accumulate(state.replaced.begin(), state.replaced.end(), uint64_t{0})),
          {"stable", state.stable},
          word("ended_by", {"ended by", "", true}, ended_by),
          time_measure(seconds)};
}

struct Trained {
  Json sides = Json::object();  ///< by side, and by layer where each has its own
  MeasureTable table{"dictionary"};
  uint64_t book_bytes = 0;
  std::string digest;
};

void declare(Command& command, TrainDictOptions& options) {
  command.describe("KV ... [options] -o DICT",
                   "Learns the two dictionaries, for keys and for values, that the codec sparse needs, from "
                   "caches of one model: batches of tokens are coded with the atoms as they are, the atoms "
                   "take a step towards a lower error, and atoms hardly used are replaced. The loss is error "
                   "energy over energy. A dictionary serves any cache of the same model; train it on text "
                   "like that to be compressed.",
                   "kvcodec train-dict kv.h5 --atoms 8192 --sparsity 64 --layer-group 4 -o dict.h5\n"
                   "kvcodec train-dict kv.h5 --preset paper --layer-group 4 -o paper.h5\n"
                   "kvcodec train-dict kv.h5 --resume dict.h5 --epochs 6 -o better.h5");
  options.declare_files(command, "dictionary file to write", "DICT");
  command.group("Training");
  command.options(options.training);
}

void train_side(const DictData& data, DictKind& kind, Side side, size_t part, Trained& all) {
  const Stopwatch watch;
  const TrainDictOptions& options = data.options;
  SparseBook& sparse = kind.book;
  const KvSource signals(
      data, kind, sparse.global() ? kind.groups : std::vector<std::vector<int>>{kind.groups[part]}, side);
  SparseBook::OneSide& trained = sparse.of(side, part);
  auto& [dictionary, training] = trained;
  const std::vector<int>& layers = sparse.global() ? kind.layers : kind.groups[part];
  const bool of_all = sparse.global() && data.one_kind;
  std::string name(name_of(side));  // "key", or "key 2-3": of layers 2 and 3
  if (!of_all) name += " " + ranges_text(layers);
  const uint64_t steps_before = training.steps;
  check_memory(signals, options, sparse.parts.size());
  const uint64_t count = signals.tokens() * signals.groups() * signals.layout().signals_per_row();
  const auto atoms = static_cast<uint64_t>(options.training.atoms);
  if (side == Side::key && part == 0 &&
      count < atoms)  // every signal gets an atom, and the loss has no meaning
    options.common.note("{} signals for {} atoms; there should be many more signals than atoms",
                        grouped(count), grouped(atoms));
  ProgressBar bar(fmt::format("train-dict {}", name), "steps", options.common.quiet);
  Engine* const engine = options.common.engine();
  const auto device =
      engine ? engine->make<TrainingEngine>(options.training, signals.layout().signal_width()) : nullptr;
  const TrainHelp help{device.get(), data.team};
  train_dictionary(signals, options.training, dictionary, training, bar.callback(), help);
  const Measures measures = measures_of(trained, signals, options.training, steps_before, watch.seconds());
  Json& json = all.sides[std::string(name_of(side))];
  (of_all ? json : json[std::to_string(layers.front())]) = json_of(measures);
  all.table.row(name, measures);
  // A fixed time in files requests the same bytes from the same work.
  if (std::getenv("SOURCE_DATE_EPOCH") != nullptr) std::ranges::fill(training.seconds, 0.0);
}

std::string train_dict(Command& command) {
  TrainDictOptions options;
  // Before parsing: the defaults of options follow from it.
  if (const std::string asked = command.peek("preset"); !asked.empty())
    set_from_text(options.fields().front(), "--preset", asked);
  if (options.preset == Preset::paper) options.training = TrainOptions::paper();
  declare(command, options);
  options.parse(command, true);
  options.training.check();
  Normalize& normalize = options.training.normalize;
  options.check_resumed_weights();
  if (options.resume.empty() && options.weights.empty() && normalize == Normalize::weights)
    throw usage_error("--normalize weights needs a file: --weights FILE");
  if (options.resume.empty() && !options.weights.empty()) {  // scales that are given instead of computed
    if (command.given("normalize") && normalize != Normalize::weights)
      throw usage_error("--weights takes the place of --normalize {}; leave out one of the two", normalize);
    normalize = Normalize::weights;
  }

  TrainingFiles files = open_training_files(options.inputs, command.team());
  const KvReader& first = files.caches.front();
  const ModelInfo& model = first.model();
  const LayerKinds kinds = kinds_of_layers(files.caches);
  std::vector<SparseBook> books(kinds.size());
  if (!options.resume.empty()) {
    const BookFile file = read_book(options.resume, "dictionary", true);
    const auto stored = resumed_books(file.book, kinds, model.num_layers, options.resume);
    for (size_t i = 0; i < kinds.size(); ++i)
      books[i] = with_context(options.resume, [&] { return sparse_book_from(stored[i], true); });
    SparseBook& sparse = books.front();
    resume_options(command, options.training, sparse.options, {"epochs", "steps", "seconds", "tolerance"},
                   options.resume);
    options.training = sparse.options;
    options.rope = resume_rope(command, options.rope, sparse.rope, options.resume);
    options.training.check();
    files.histories.push_back(file.type.history);
  }
  const bool resumed = !options.resume.empty();
  const LayerWeights weights = options.read_weights(first);
  std::vector<DictKind> of_kinds;
  for (size_t i = 0; i < kinds.size(); ++i) {
    DictKind kind{.layers = kinds[i],
                  .groups = groups_in_kind(kinds[i], options.training.layer_group, options.layers, first),
                  .runs = choose_runs(
                      files.caches, {kinds[i], options.documents, static_cast<uint64_t>(options.max_tokens)}),
                  .weights = weights.of(kinds[i]),
                  .book = std::move(books[i])};
    if (kind.groups.empty()) continue;  // --layers has none of them
    if (kind.runs.empty()) throw bad_input("{}: there are no tokens to train on", first.name());
    const auto firsts = mapped<int>(kind.groups, [&](const auto& group) { return group.front(); });
    SparseBook& sparse = kind.book;
    const std::string source = source_digest(kind.runs, firsts);
    if (resumed && source != sparse.source)
      throw bad_input(
          "{}: it was trained on other data; --resume wants the same KV files, --layers, --documents and "
          "--max-tokens",
          options.resume);
    const LayerShape shape = model.layer_shape(kind.layers.front());
    sparse.options = options.training;
    sparse.rope = options.rope;
    sparse.num_layers = static_cast<int>(kind.layers.size());
    sparse.heads = shape.heads, sparse.head_dim = shape.key_dim, sparse.value_dim = value_dim_of(shape);
    sparse.source = source;
    if (!sparse.global() && !resumed) {
      sparse.parts.clear();
      for (const int layer : firsts) sparse.parts.push_back({place_in_kind(kind.layers, layer)});
    }
    of_kinds.push_back(std::move(kind));
  }
  const TrainedRows rows(files.caches, options.rope);

  const DictData data{options, rows, model, command.team(), kinds.size() == 1};
  const auto train = [&] {
    Trained trained;
    for (DictKind& kind : of_kinds)
      for (const Side side : kind.book.sides())
        for (size_t part = 0; part < kind.book.parts.size(); ++part)
          train_side(data, kind, side, part, trained);
    return trained;
  };
  const auto write = [&](OutputFile& output, Trained& trained) {
    LayerKinds trained_kinds;
    std::vector<Book> of_each;
    for (DictKind& kind : of_kinds) {
      trained_kinds.push_back(kind.layers);
      of_each.push_back(to_book(std::move(kind.book)));
    }
    const Book book = join_kinds(trained_kinds, std::move(of_each), model.num_layers);
    trained.book_bytes = book.size_bytes(), trained.digest = book.digest();
    write_book(output, book, model, command.provenance(merged_history(files.histories)));
  };
  return train_to_file(command.team(), options.output, train, write, [&](const Trained& trained) {
    Json json = {
        {"output", options.output.path}, {"digest", trained.digest}, {"book_bytes", trained.book_bytes}};
    json.update(trained.sides);
    if (options.common.json) return text_of(json);
    return trained.table.text() + fmt::format("{}: {}, digest {}\n", options.output.path,
                                              size_text(trained.book_bytes), trained.digest);
  });
}

}  // namespace

CommandEntry train_dict_command() {
  return {
      CommandGroup::prepare, 3, "train-dict", "learn a dictionary for the codec sparse", train_dict, true};
}

}  // namespace kvcodec::cli
