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
#include <numeric>

#include "cli/coding.hpp"
#include "cli/common.hpp"
#include "cli/json.hpp"
#include "cli/progress.hpp"
#include "cli/subcommands.hpp"
#include "cli/text.hpp"
#include "formats/book_file.hpp"
#include "formats/kv_file.hpp"
#include "lib/codec/sparse_book.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

// A sample is taken in runs of this many tokens: long enough to read at full speed, short enough to come from
// everywhere.
constexpr uint64_t kSampleRun = 256;

struct TrainDictOptions final : Options {
  std::vector<std::string> inputs;
  int64_t max_tokens = 0;
  std::string resume;
  TrainOptions training;
  CommonOptions common;
  OutputOptions output;
  LayerSelection layers;
  DocumentSelection documents;

  std::vector<OptionField> fields() override {
    return {
        {.name = "max-tokens",
         .help = "train on a sample of N tokens, in runs spread evenly over the documents (default: all)",
         .target = &max_tokens,
         .min = 1},
        {.name = "resume",
         .help = "go on with the training of this dictionary, on the same data; its options hold, and only "
                 "--epochs, --steps and --tolerance may be given anew",
         .target = &resume},
    };
  }
};

/// Consecutive tokens of one file.
struct Run {
  const KvReader* kv = nullptr;
  uint64_t first = 0, count = 0;
};

/// The tokens to train on: those of the chosen documents, or an even sample of them.
std::vector<Run> choose_runs(const std::vector<KvReader>& files, const DocumentSelection& documents,
                             uint64_t max_tokens) {
  std::vector<Run> runs;
  uint64_t total = 0;
  for (const KvReader& kv : files)
    for (const size_t document : documents.choose(kv.documents(), kv.name())) {
      runs.push_back({&kv, kv.documents().offsets[document], kv.documents().length(document)});
      total += runs.back().count;
    }
  if (max_tokens == 0 || total <= max_tokens) return runs;
  // The sample's run i begins at the same share of all tokens as it does of the sample.
  std::vector<Run> sample;
  const uint64_t pieces = (max_tokens + kSampleRun - 1) / kSampleRun;
  size_t at = 0;
  uint64_t before = 0;  // tokens in front of runs[at]
  for (uint64_t i = 0; i < pieces; ++i) {
    uint64_t place = static_cast<uint64_t>(static_cast<double>(total) *
                                           (static_cast<double>(i) / static_cast<double>(pieces)));
    uint64_t left = std::min(kSampleRun, max_tokens - i * kSampleRun);
    while (left > 0) {
      while (at < runs.size() && place >= before + runs[at].count) before += runs[at++].count;
      if (at == runs.size()) break;
      const uint64_t count = std::min(left, before + runs[at].count - place);
      sample.push_back({runs[at].kv, runs[at].first + (place - before), count});
      place += count;
      left -= count;
    }
  }
  return sample;
}

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

/// Identifies what is trained on, so that --resume can tell other data: model, text, and which part of it.
std::string source_digest(const std::vector<Run>& runs, const std::vector<int>& groups) {
  Digest digest;
  const ModelInfo& model = runs.front().kv->model();
  digest.add(model.model);
  digest.add(model.source);
  for (const int group : groups) digest.add(static_cast<uint64_t>(group));
  for (const Run& run : runs) {
    digest.add(run.first);
    digest.add(run.count);
    const auto positions = run.kv->positions(run.first, run.count);
    digest.add(std::as_bytes(std::span(positions)));
    if (!run.kv->has_tokens()) continue;
    const auto tokens = run.kv->tokens(run.first, run.count);
    digest.add(std::as_bytes(std::span(tokens)));
  }
  return digest.hex();
}

void check_same_model(const std::vector<KvReader>& files) {
  for (const KvReader& kv : files) {
    const ModelInfo &a = files.front().model(), &b = kv.model();
    const auto differ = [&](const char* what, const auto& first, const auto& other) {
      if (first != other)
        throw bad_input("{}: {} is {}; {} has {}", kv.name(), what, other, files.front().name(), first);
    };
    differ("num_layers", a.num_layers, b.num_layers);
    differ("num_kv_heads", a.num_kv_heads, b.num_kv_heads);
    differ("head_dim", a.head_dim, b.head_dim);
    differ("key_state", a.key_state, b.key_state);
    if (files.front().layers() != kv.layers())
      throw bad_input("{}: it has layers {}; {} has {}", kv.name(), ranges_text(kv.layers()),
                      files.front().name(), ranges_text(files.front().layers()));
  }
}

/// The options of the dictionary, with those that may change set as the command line says.
TrainOptions resumed_options(const Command& command, TrainOptions given, const TrainOptions& stored,
                             const std::string& file) {
  TrainOptions options = stored;
  const auto targets = options.fields();
  const auto sources = given.fields();
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string& name = sources[i].name;
    if (!command.given(name)) continue;
    if (name == "epochs" || name == "steps" || name == "tolerance")
      set_value(targets[i], value_of(sources[i]));
    else if (value_of(sources[i]) != value_of(targets[i]))
      throw usage_error("--{} is {}; {} was trained with {}, and --resume goes on as it was", name,
                        to_text(value_of(sources[i])), file, to_text(value_of(targets[i])));
  }
  return options;
}

struct SideResult {
  Side side;
  uint64_t signals_per_epoch = 0;
  uint64_t steps_before = 0;
  double seconds = 0;
};

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
    const auto& [dictionary, training] = sparse.of(result.side);
    const uint64_t replaced =
        std::accumulate(training.replaced.begin(), training.replaced.end(), uint64_t{0});
    const double first =
        training.loss.empty() ? std::numeric_limits<double>::quiet_NaN() : training.loss.front();
    const double held_out =
        training.validation.empty() ? std::numeric_limits<double>::quiet_NaN() : training.validation.back();
    table.row({std::string(name_of(result.side)), grouped(dictionary.atoms.rows()),
               grouped(dictionary.atoms.cols()), grouped(result.signals_per_epoch), grouped(training.steps),
               significant(first, 3), significant(recent_loss(training.loss), 3), significant(held_out, 3),
               grouped(replaced), training.stable ? "stable loss" : "plan", time_text(result.seconds)});
    json[std::string(name_of(result.side))] = {{"atoms", dictionary.atoms.rows()},
                                               {"width", dictionary.atoms.cols()},
                                               {"signals", result.signals_per_epoch},
                                               {"steps", training.steps},
                                               {"steps_before", result.steps_before},
                                               {"loss_first", first},
                                               {"loss_recent", recent_loss(training.loss)},
                                               {"loss_held_out", held_out},
                                               {"replaced", replaced},
                                               {"stable", training.stable},
                                               {"seconds", result.seconds}};
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
                   "follow the gradient of the error, and atoms hardly used are replaced. The loss is error "
                   "energy over energy. A dictionary serves any cache of the same model; train it on text "
                   "like that to be compressed.",
                   "kvcodec train-dict kv.h5 --atoms 8192 --sparsity 64 --layer-group 4 -o dict.h5\n"
                   "kvcodec train-dict kv.h5 --resume dict.h5 --epochs 6 -o better.h5");
  command.group("Input and output");
  command.inputs("KV", "kv files of one model; one of them can be -, standard input", options.inputs);
  options.output.declare(command, "dictionary file to write");
  options.layers.declare(command);
  options.documents.declare(command);
  command.options(options, {{"resume", "DICT"}});
  command.group("Training");
  command.options(options.training);
  options.common.declare(command);
  command.parse();
  options.output.check(options.common);
  auto inputs = options.inputs;
  inputs.push_back(options.resume);
  check_inputs(inputs);
  options.common.apply(command, false);
  options.training.check();

  std::vector<KvReader> files;
  for (const auto& input : options.inputs) files.emplace_back(input);
  check_same_model(files);
  SparseBook sparse;
  std::vector<std::vector<std::string>> histories;
  for (const auto& kv : files) histories.push_back(kv.type().history);
  if (!options.resume.empty()) {
    const BookFile file = read_book(options.resume, "dictionary", true);
    sparse = with_context(options.resume, [&] { return sparse_book_from(file.book, true); });
    options.training = resumed_options(command, options.training, sparse.options, options.resume);
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
  const auto runs = choose_runs(files, options.documents, static_cast<uint64_t>(options.max_tokens));
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

  OutputFile output(options.output.path, options.output.overwrite);
  std::vector<SideResult> results;
  for (const Side side : kSides) {
    const auto start = std::chrono::steady_clock::now();
    const KvSource signals(runs, groups, options.training, side);
    auto& [dictionary, training] = sparse.of(side);
    SideResult result{side, signals.tokens() * groups.size() * signals.layout().signals_per_row(),
                      training.steps, 0};
    if (side == Side::key && !options.common.quiet)
      note_little_data(result.signals_per_epoch, options.training.atoms);
    {
      ProgressBar bar(fmt::format("train-dict {}s", name_of(side)), "steps", options.common.quiet);
      train_dictionary(signals, options.training, dictionary, training, bar.callback());
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    results.push_back(result);
  }
  const Book book = to_book(sparse);
  write_book(output, book, model, command.provenance(merged_history(histories)));
  output.commit();
  return options.output.to_stdout() ? ""
                                    : summary(sparse, results, options, book.size_bytes(), book.digest());
}

}  // namespace kvcodec::cli
