// kvcodec train-dict KV ... [options] -o DICT
//
//   --atoms N (8192)    --sparsity N (64)    --layer-group N (1)    --normalize, --center, --start,
//   --optimizer, --batch,
//   --epochs, --steps …  how to train, with their defaults in the help
//   --max-tokens N      train on a sample    --resume DICT   go on from there
//
//   kvcodec train-dict kv.h5 --atoms 8192 --sparsity 64 --layer-group 4 -o dict.h5
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>

#include "cli/coding.hpp"
#include "cli/common.hpp"
#include "cli/json.hpp"
#include "cli/progress.hpp"
#include "cli/subcommands.hpp"
#include "cli/text.hpp"
#include "cli/training.hpp"
#include "formats/book_file.hpp"
#include "formats/kv_file.hpp"
#include "lib/codec/engine.hpp"
#include "lib/codec/sparse_book.hpp"
#include "lib/core/error.hpp"

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
    };
  }
};

/// One side of the chosen layers and tokens, for the trainer to read.
class KvSource final : public SignalSource {
 public:
  KvSource(const std::vector<Run>& runs, const std::vector<int>& groups, const TrainOptions& options,
           Side side)
      : runs_(runs),
        groups_(groups),
        model_(runs.front().kv->model()),
        options_(options),
        side_(side),
        starts_{0} {
    for (const Run& run : runs_) starts_.push_back(starts_.back() + run.count);
  }

  SignalLayout layout() const override { return options_.layout(model_.num_kv_heads, model_.head_dim); }
  size_t num_layers() const override { return static_cast<size_t>(model_.num_layers); }
  size_t groups() const override { return groups_.size(); }
  int first_layer(size_t group) const override { return groups_[group]; }
  uint64_t tokens() const override { return starts_.back(); }

  void read(size_t group, uint64_t first, MatrixView<float> out) const override {
    const GroupShape shape =
        group_shape(model_, groups_[group], static_cast<int>(options_.layer_group), side_);
    size_t run =
        static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin()) - 1;
    for (size_t done = 0; done < out.rows(); ++run) {
      const uint64_t skip = first + done - starts_[run];
      const auto count = static_cast<size_t>(std::min<uint64_t>(runs_[run].count - skip, out.rows() - done));
      if (count > 0) runs_[run].kv->read(shape, runs_[run].first + skip, out.rows(done, count));
      done += count;
    }
  }

 private:
  const std::vector<Run>& runs_;
  const std::vector<int>& groups_;
  const ModelInfo& model_;
  const TrainOptions& options_;
  Side side_;
  std::vector<uint64_t> starts_;  // of each run along all tokens, and their sum
};

/// Of one dictionary.
struct SideResult {
  Side side;
  size_t part = 0;
  uint64_t signals_per_epoch = 0;
  uint64_t steps_before = 0;
  double seconds = 0;
  std::string ended_by;  ///< plan, time or stable loss
};

std::string ended_by(const SignalSource& source, const TrainOptions& options, const TrainState& state) {
  if (state.stable) return "stable loss";
  return state.steps < planned_steps(source, options) ? "time" : "plan";
}

/// Refuses before anything is allocated: the products of all atoms of all dictionaries stay until the file is
/// written; the signals that a start clusters are those of one.
void check_memory(const SignalSource& source, const TrainDictOptions& options, size_t parts, bool begins) {
  const uint64_t memory = options.common.memory_bytes();
  const uint64_t products = parts * std::size(kSides) * products_bytes(source, options.training);
  if (products > memory)
    throw usage_error(
        "--optimizer {} keeps the products of all pairs of {} atoms, {} for all dictionaries, more than "
        "--memory ({}): take fewer --atoms, or adam",
        options.training.optimizer, options.training.atoms, size_text(products), size_text(memory));
  const uint64_t start = begins ? start_bytes(source, options.training) : 0;
  if (start > memory - products)
    throw usage_error(
        "--start kmeans holds signals of {} at once, more than --memory ({}) leaves: take fewer "
        "--atoms, --max-tokens, or samples",
        size_text(start), size_text(memory));
}

/// With so little data every signal gets an atom of its own, and the loss says nothing.
void note_little_data(uint64_t signals, int64_t atoms) {
  if (signals >= static_cast<uint64_t>(atoms)) return;
  std::fputs(
      fmt::format("kvcodec train-dict: note: {} signals for {} atoms; there should be many more signals "
                  "than atoms\n",
                  grouped(signals), grouped(static_cast<uint64_t>(atoms)))
          .c_str(),
      stderr);
}

/// Mean of the newest losses: batches differ too much for a single one to say anything.
double recent_loss(const std::vector<double>& loss) {
  const size_t count = std::min(loss.size(), kStableSteps);
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(loss.end() - static_cast<std::ptrdiff_t>(count), loss.end(), 0.0) /
         static_cast<double>(count);
}

/// "key", or "key 2-3": of layers 2 and 3.
std::string name_of_dictionary(const SparseBook& sparse, const SideResult& result) {
  const std::string side(name_of(result.side));
  if (sparse.global()) return side;
  const int first = sparse.parts[result.part].first_layer;
  const auto layers = static_cast<int>(sparse.options.layer_group);
  return layers == 1 ? fmt::format("{} {}", side, first)
                     : fmt::format("{} {}-{}", side, first, first + layers - 1);
}

std::string summary(const SparseBook& sparse, const std::vector<SideResult>& results,
                    const TrainDictOptions& options, uint64_t book_bytes, const std::string& digest) {
  Json json = {{"output", options.output.path}, {"digest", digest}, {"book_bytes", book_bytes}};
  Table table({{"dictionary"},
               {"atoms"},
               {"width"},
               {"signals"},
               {"steps"},
               {"loss", "first"},
               {"loss", "now"},
               {"loss", "held out"},
               {"atoms", "replaced"},
               {"ended by", "", true},
               {"time"}});
  for (const auto& result : results) {
    const auto& [dictionary, training] = sparse.of(result.side, result.part);
    const uint64_t replaced =
        std::accumulate(training.replaced.begin(), training.replaced.end(), uint64_t{0});
    const double first =
        training.loss.empty() ? std::numeric_limits<double>::quiet_NaN() : training.loss.front();
    const double held_out =
        training.validation.empty() ? std::numeric_limits<double>::quiet_NaN() : training.validation.back();
    table.row({name_of_dictionary(sparse, result), grouped(dictionary.atoms.rows()),
               grouped(dictionary.atoms.cols()), grouped(result.signals_per_epoch), grouped(training.steps),
               significant(first, 3), significant(recent_loss(training.loss), 3), significant(held_out, 3),
               grouped(replaced), result.ended_by, time_text(result.seconds)});
    Json of_side = {{"atoms", dictionary.atoms.rows()},
                    {"width", dictionary.atoms.cols()},
                    {"signals", result.signals_per_epoch},
                    {"steps", training.steps},
                    {"steps_before", result.steps_before},
                    {"loss_first", first},
                    {"loss_recent", recent_loss(training.loss)},
                    {"loss_held_out", held_out},
                    {"replaced", replaced},
                    {"stable", training.stable},
                    {"ended_by", result.ended_by},
                    {"seconds", result.seconds}};
    const std::string side(name_of(result.side));
    if (sparse.global())
      json[side] = std::move(of_side);
    else
      json[side][std::to_string(sparse.parts[result.part].first_layer)] = std::move(of_side);
  }
  if (options.common.json) return text_of(json);
  return table.text() +
         fmt::format("{}: {}, digest {}\n", options.output.path, size_text(book_bytes), digest);
}

}  // namespace

std::string train_dict(Command& command) {
  TrainDictOptions options;
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
  options.parse(command, true);
  options.training.check();

  auto [files, histories] = open_training_files(options.inputs);
  SparseBook sparse;
  if (!options.resume.empty()) {
    const BookFile file = read_book(options.resume, "dictionary", true);
    sparse = with_context(options.resume, [&] { return sparse_book_from(file.book, true); });
    resume_options(command, options.training, sparse.options, {"epochs", "steps", "seconds", "tolerance"},
                   options.resume);
    options.training = sparse.options;
    options.training.check();
    histories.push_back(file.type.history);
  }
  const ModelInfo& model = files.front().model();
  const auto layers = options.layers.choose(files.front().layers(), files.front().name());
  const auto layer_group = static_cast<int>(options.training.layer_group);
  if (layer_group < 1 || model.num_layers % layer_group != 0)
    throw usage_error("--layer-group is {}; it must divide the model's {} layers", layer_group,
                      model.num_layers);
  const auto groups = options.layers.given() ? whole_groups(layers, layer_group, ErrorKind::usage, "--layers")
                                             : whole_groups(layers, layer_group, ErrorKind::bad_input,
                                                            files.front().name() + ": layers");
  const auto runs = choose_runs(files, options.documents, static_cast<uint64_t>(options.max_tokens), 0);
  if (runs.empty()) throw bad_input("{}: there are no tokens to train on", files.front().name());
  const std::string source = source_digest(runs, groups);
  if (!options.resume.empty() && source != sparse.source)
    throw bad_input(
        "{}: it was trained on other data; --resume wants the same KV files, --layers, --documents and "
        "--max-tokens",
        options.resume);
  sparse.options = options.training;
  sparse.num_layers = model.num_layers;
  sparse.heads = model.num_kv_heads;
  sparse.head_dim = model.head_dim;
  sparse.source = source;

  if (!sparse.global() && options.resume.empty()) {
    sparse.parts.clear();
    for (const int group : groups) sparse.parts.push_back({group});
  }

  OutputFile output(options.output.path, options.output.overwrite);
  std::vector<SideResult> results;
  for (const Side side : kSides)
    for (size_t part = 0; part < sparse.parts.size(); ++part) {
      const auto start = std::chrono::steady_clock::now();
      const auto served = sparse.global() ? groups : std::vector{sparse.parts[part].first_layer};
      const KvSource signals(runs, served, options.training, side);
      auto& [dictionary, training] = sparse.of(side, part);
      SideResult result{
          side,           part, signals.tokens() * served.size() * signals.layout().signals_per_row(),
          training.steps, 0,    {}};
      check_memory(signals, options, sparse.parts.size(), training.steps == 0);
      if (side == Side::key && part == 0 && !options.common.quiet)
        note_little_data(result.signals_per_epoch, options.training.atoms);
      {
        ProgressBar bar(fmt::format("train-dict {}", name_of_dictionary(sparse, result)), "steps",
                        options.common.quiet);
        Engine* engine = options.common.engine();
        if (engine && training.steps == 0 && options.training.start == "kmeans")
          engine->leave("train-dict: the clusters of start kmeans");
        const auto device =
            engine ? engine->training(options.training, signals.layout().signal_width()) : nullptr;
        train_dictionary(signals, options.training, dictionary, training, bar.callback(), device.get());
      }
      result.ended_by = ended_by(signals, options.training, training);
      result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      // Who fixes the time that files name wants the same bytes from the same work.
      if (std::getenv("SOURCE_DATE_EPOCH") != nullptr) std::ranges::fill(training.seconds, 0.0);
      results.push_back(result);
    }
  const Book book = to_book(sparse);
  write_book(output, book, model, command.provenance(merged_history(histories)));
  output.commit();
  return options.output.to_stdout() ? ""
                                    : summary(sparse, results, options, book.size_bytes(), book.digest());
}

}  // namespace kvcodec::cli
