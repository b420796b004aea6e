// kvcodec train-dict KV ... [options] -o DICT
//
//   --atoms N (8192)    of each dictionary
//   --sparsity N (64)   atoms per signal
//   --layer-group N (1) layers that share one code
//   --normalize, --center, --start, --optimizer, --batch, --epochs, --steps …
//                       how to train, with their defaults in the help
//   --max-tokens N      train on a sample
//   --resume DICT       go on from there
//
//   kvcodec train-dict kv.h5 --atoms 8192 --sparsity 64 --layer-group 4 -o dict.h5
#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "cli/codecs/coding.hpp"
#include "cli/frame/command_entry.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/json.hpp"
#include "cli/frame/measures.hpp"
#include "cli/frame/product.hpp"
#include "cli/frame/progress.hpp"
#include "cli/frame/ranks.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/training.hpp"
#include "formats/cache/book_file.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/engine/engine.hpp"
#include "lib/sparse/codec/book.hpp"

namespace kvcodec::cli {
namespace {

struct TrainDictOptions final : TrainingOptions {
  int64_t max_tokens = 0;
  TrainOptions training;

  std::vector<OptionField> fields() override {
    return {
        {.name = "max-tokens",
         .help = "train on a sample of N tokens, in runs spread evenly over the documents (default: all)",
         .target = &max_tokens,
         .min = 1},
        {.name = "resume",
         .help = "go on with the training of this dictionary, on the same data; its options hold, and only "
                 "--epochs, --steps, --seconds and --tolerance may be given anew",
         .target = &resume},
        rope_field("dictionaries"),
        weights_field("dictionaries"),
    };
  }
};

/// One side of the chosen layers and tokens, for the trainer to read.
class KvSource final : public SignalSource {
 public:
  KvSource(const TrainedRows& rows, const std::vector<Run>& runs, const std::vector<int>& groups,
           const TrainOptions& options, const LayerWeights& weights, Side side)
      : tokens_(rows, runs),
        groups_(groups),
        model_(runs.front().kv->model()),
        options_(options),
        weights_(weights),
        side_(side) {}

  SignalLayout layout() const override { return options_.layout(model_.num_kv_heads, model_.head_dim); }
  size_t num_layers() const override { return static_cast<size_t>(model_.num_layers); }
  size_t groups() const override { return groups_.size(); }
  int first_layer(size_t group) const override { return groups_[group]; }
  uint64_t tokens() const override { return tokens_.count(); }
  std::vector<float> layer_scales() const override {
    std::vector<float> scales;
    for (size_t layer = 0; layer < weights_.layers(); ++layer)
      scales.push_back(weights_.error_scale(static_cast<int>(layer), side_));
    return scales;
  }

  void read(size_t group, uint64_t first, MatrixView<float> out) const override {
    tokens_.read(group_shape(model_, groups_[group], static_cast<int>(options_.layer_group), side_), first,
                 out);
  }

 private:
  RunTokens tokens_;
  const std::vector<int>& groups_;
  const ModelInfo& model_;
  const TrainOptions& options_;
  const LayerWeights& weights_;
  Side side_;
};

/// What is said of one dictionary; all there is to say of it once it is in the book.
struct SideResult {
  Side side = Side::key;
  int first_layer = 0;  ///< of those it is for
  std::string name;
  uint64_t signals_per_epoch = 0;
  uint64_t steps_before = 0, steps = 0;
  double seconds = 0;
  std::string ended_by;  ///< plan, time or stable loss
  bool stable = false;
  size_t atoms = 0, width = 0;
  uint64_t replaced = 0;
  double first = 0, recent = 0, held_out = 0;  ///< losses; NaN where there is none
};

std::string ended_by(const SignalSource& source, const TrainOptions& options, const TrainState& state) {
  if (state.stable) return "stable loss";
  return state.steps < planned_steps(source, options) ? "time" : "plan";
}

/// Refuses before anything is allocated: all dictionaries stay until the file is written, with what their
/// training goes on from; the signals that a start clusters are those of one.
void check_memory(const SignalSource& source, const TrainDictOptions& options, size_t parts, bool begins) {
  const uint64_t memory = options.common.memory_bytes();
  const uint64_t count = parts * std::size(kSides);
  const uint64_t atom_bytes =
      static_cast<uint64_t>(options.training.atoms) * source.layout().signal_width() * sizeof(float);
  const uint64_t trained = checked_mul(count, trained_bytes(source, options.training), ErrorKind::usage);
  if (trained > memory)
    throw usage_error(
        "{} dictionaries of {} atoms, with what --optimizer {} keeps, take {}, more than --memory ({}): take "
        "fewer --atoms{}",
        count, options.training.atoms, options.training.optimizer, size_text(trained), size_text(memory),
        trained > checked_mul(count, atom_bytes) ? ", or an optimizer that keeps less" : "");
  const uint64_t start = begins ? start_bytes(source, options.training) : 0;
  if (start > memory - trained)
    throw usage_error(
        "--start kmeans holds signals of {} at once, more than --memory ({}) leaves: take fewer "
        "--atoms, --max-tokens, or samples",
        size_text(start), size_text(memory));
}

/// With so little data every signal gets an atom of its own, and the loss says nothing.
void note_little_data(uint64_t signals, const TrainDictOptions& options) {
  const auto atoms = static_cast<uint64_t>(options.training.atoms);
  if (signals < atoms)
    options.common.note("{} signals for {} atoms; there should be many more signals than atoms",
                        grouped(signals), grouped(atoms));
}

/// Mean of the newest losses: batches differ too much for a single one to say anything.
double recent_loss(const std::vector<double>& loss) {
  const size_t count = std::min(loss.size(), kStableSteps);
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(loss.end() - static_cast<std::ptrdiff_t>(count), loss.end(), 0.0) /
         static_cast<double>(count);
}

/// "key", or "key 2-3": of layers 2 and 3.
std::string name_of_dictionary(const SparseBook& sparse, Side side, int first) {
  std::string name(name_of(side));
  if (sparse.global()) return name;
  const auto layers = static_cast<int>(sparse.options.layer_group);
  return layers == 1 ? fmt::format("{} {}", name, first)
                     : fmt::format("{} {}-{}", name, first, first + layers - 1);
}

/// Takes down what training came to.
void finish(SideResult& result, const SignalSource& source, const TrainOptions& options,
            const SparseBook::OneSide& trained) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const auto& [dictionary, state] = trained;
  result.steps = state.steps;
  result.ended_by = ended_by(source, options, state);
  result.stable = state.stable;
  result.atoms = dictionary.atoms.rows(), result.width = dictionary.atoms.cols();
  result.replaced = std::accumulate(state.replaced.begin(), state.replaced.end(), uint64_t{0});
  result.first = state.loss.empty() ? kNone : state.loss.front();
  result.recent = recent_loss(state.loss);
  result.held_out = state.validation.empty() ? kNone : state.validation.back();
}

Measures measures_of(const SideResult& result) {
  return {number_of("atoms", {"atoms"}, result.atoms),
          number_of("width", {"width"}, result.width),
          number_of("signals", {"signals"}, result.signals_per_epoch),
          number_of("steps", {"steps"}, result.steps),
          {"steps_before", result.steps_before},
          rounded("loss_first", {"loss", "first"}, result.first, 3),
          rounded("loss_recent", {"loss", "now"}, result.recent, 3),
          rounded("loss_held_out", {"loss", "held out"}, result.held_out, 3),
          number_of("replaced", {"atoms", "replaced"}, result.replaced),
          {"stable", result.stable},
          word("ended_by", {"ended by", "", true}, result.ended_by),
          time_measure(result.seconds)};
}

std::string summary(bool global, const std::vector<SideResult>& results, const TrainDictOptions& options,
                    uint64_t book_bytes, const std::string& digest) {
  Json json = {{"output", options.output.path}, {"digest", digest}, {"book_bytes", book_bytes}};
  MeasureTable table("dictionary");
  for (const SideResult& result : results) {
    const Measures measures = measures_of(result);
    Json& of_side = json[std::string(name_of(result.side))];
    (global ? of_side : of_side[std::to_string(result.first_layer)]) = json_of(measures);
    table.row(result.name, measures);
  }
  if (options.common.json) return text_of(json);
  return table.text() +
         fmt::format("{}: {}, digest {}\n", options.output.path, size_text(book_bytes), digest);
}

void declare(Command& command, TrainDictOptions& options) {
  command.describe("KV ... [options] -o DICT",
                   "Learns the two dictionaries, for keys and for values, that the codec sparse needs, from "
                   "caches of one model: batches of tokens are coded with the atoms as they are, the atoms "
                   "take a step towards a lower error, and atoms hardly used are replaced. The loss is error "
                   "energy over energy. A dictionary serves any cache of the same model; train it on text "
                   "like that to be compressed.",
                   "kvcodec train-dict kv.h5 --atoms 8192 --sparsity 64 --layer-group 4 -o dict.h5\n"
                   "kvcodec train-dict kv.h5 --resume dict.h5 --epochs 6 -o better.h5");
  options.declare_files(command, "dictionary file to write", "DICT");
  command.group("Training");
  command.options(options.training);
}

/// Takes up the training that --resume names: what was learned, and its options except those given anew.
/// Returns the file's history.
std::vector<std::string> take_up(const Command& command, TrainDictOptions& options, SparseBook& sparse) {
  const BookFile file = read_book(options.resume, "dictionary", true);
  sparse = with_context(options.resume, [&] { return sparse_book_from(file.book, true); });
  resume_options(command, options.training, sparse.options, {"epochs", "steps", "seconds", "tolerance"},
                 options.resume);
  options.training = sparse.options;
  options.rope = resume_rope(command, options.rope, sparse.rope, options.resume);
  options.training.check();
  return file.type.history;
}

/// First layers of the groups of layers to train on.
std::vector<int> choose_groups(const KvReader& kv, const TrainDictOptions& options) {
  const auto layers = options.layers.choose(kv.layers(), kv.name());
  const auto layer_group = static_cast<int>(options.training.layer_group);
  if (layer_group < 1 || kv.model().num_layers % layer_group != 0)
    throw usage_error("--layer-group is {}; it must divide the model's {} layers", layer_group,
                      kv.model().num_layers);
  return options.layers.given()
             ? whole_groups(layers, layer_group, ErrorKind::usage, "--layers")
             : whole_groups(layers, layer_group, ErrorKind::bad_input, kv.name() + ": layers");
}

/// Says in the book what its dictionaries are for and were trained on.
void describe_book(SparseBook& sparse, const TrainDictOptions& options, const std::vector<Run>& runs,
                   const std::vector<int>& groups) {
  const std::string source = source_digest(runs, groups);
  const bool resumed = !options.resume.empty();
  if (resumed && source != sparse.source)
    throw bad_input(
        "{}: it was trained on other data; --resume wants the same KV files, --layers, --documents and "
        "--max-tokens",
        options.resume);
  const ModelInfo& model = runs.front().kv->model();
  sparse.options = options.training;
  sparse.rope = options.rope;
  sparse.num_layers = model.num_layers;
  sparse.heads = model.num_kv_heads;
  sparse.head_dim = model.head_dim;
  sparse.source = source;
  if (sparse.global() || resumed) return;
  sparse.parts.clear();
  for (const int group : groups) sparse.parts.push_back({group});
}

/// Weights are a normalization, of given scales instead of found ones.
void check_weights(const Command& command, TrainDictOptions& options) {
  Normalize& normalize = options.training.normalize;
  options.check_resumed_weights();
  if (!options.resume.empty()) return;
  if (options.weights.empty()) {
    if (normalize == Normalize::weights)
      throw usage_error("--normalize weights needs a file: --weights FILE");
    return;
  }
  if (command.given("normalize") && normalize != Normalize::weights)
    throw usage_error("--weights takes the place of --normalize {}; leave out one of the two", normalize);
  normalize = Normalize::weights;
}

/// Trains one dictionary of the book.
SideResult train_side(const TrainedRows& rows, const std::vector<Run>& runs, const std::vector<int>& groups,
                      const TrainDictOptions& options, const LayerWeights& weights, SparseBook& sparse,
                      Side side, size_t part, const Team& team) {
  const Stopwatch watch;
  const auto served = sparse.global() ? groups : std::vector{sparse.parts[part].first_layer};
  const KvSource signals(rows, runs, served, options.training, weights, side);
  SparseBook::OneSide& trained = sparse.of(side, part);
  auto& [dictionary, training] = trained;
  SideResult result;
  result.side = side, result.first_layer = served.front();
  result.name = name_of_dictionary(sparse, side, served.front());
  result.signals_per_epoch = signals.tokens() * served.size() * signals.layout().signals_per_row();
  result.steps_before = training.steps;
  check_memory(signals, options, sparse.parts.size(), training.steps == 0);
  if (side == Side::key && part == 0) note_little_data(result.signals_per_epoch, options);
  ProgressBar bar(fmt::format("train-dict {}", result.name), "steps", options.common.quiet);
  Engine* const engine = options.common.engine();
  const auto device =
      engine ? engine->make<TrainingEngine>(options.training, signals.layout().signal_width()) : nullptr;
  train_dictionary(signals, options.training, dictionary, training, bar.callback(), device.get(),
                   engine ? engine->make<KmeansOnDevice>() : KmeansFunction(), team);
  finish(result, signals, options.training, trained);
  result.seconds = watch.seconds();
  // Who fixes the time that files name wants the same bytes from the same work.
  if (std::getenv("SOURCE_DATE_EPOCH") != nullptr) std::ranges::fill(training.seconds, 0.0);
  return result;
}

/// What was trained, once it is in the file.
struct Trained {
  std::vector<SideResult> sides;
  uint64_t book_bytes = 0;
  std::string digest;
};

std::string train_dict(Command& command) {
  TrainDictOptions options;
  declare(command, options);
  options.parse(command, true);
  options.training.check();
  check_weights(command, options);

  TrainingFiles files = open_training_files(options.inputs, command.team());
  const KvReader& first = files.caches.front();
  SparseBook sparse;
  if (!options.resume.empty()) files.histories.push_back(take_up(command, options, sparse));
  const auto groups = choose_groups(first, options);
  const auto runs =
      choose_runs(files.caches, options.documents, static_cast<uint64_t>(options.max_tokens), 0);
  if (runs.empty()) throw bad_input("{}: there are no tokens to train on", first.name());
  describe_book(sparse, options, runs, groups);
  const TrainedRows rows(files.caches, options.rope);
  const LayerWeights weights = options.read_weights(first);

  const bool global = sparse.global();
  const auto train = [&] {
    Trained trained;
    for (const Side side : kSides)
      for (size_t part = 0; part < sparse.parts.size(); ++part)
        trained.sides.push_back(
            train_side(rows, runs, groups, options, weights, sparse, side, part, command.team()));
    return trained;
  };
  const auto write = [&](OutputFile& output, Trained& trained) {
    const Book book = to_book(std::move(sparse));
    trained.book_bytes = book.size_bytes(), trained.digest = book.digest();
    write_book(output, book, first.model(), command.provenance(merged_history(files.histories)));
  };
  return train_to_file(command.team(), options.output, train, write, [&](const Trained& trained) {
    return summary(global, trained.sides, options, trained.book_bytes, trained.digest);
  });
}

}  // namespace

CommandEntry train_dict_command() {
  return {
      CommandGroup::prepare, 3, "train-dict", "learn a dictionary for the codec sparse", train_dict, true};
}

}  // namespace kvcodec::cli
