#include "cli/inputs/training.hpp"

#include <algorithm>
#include <iterator>

#include "cli/codecs/coding.hpp"
#include "formats/models/key_rope.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "lib/core/digest.hpp"

namespace kvcodec::cli {

// A sample consists of runs of this many tokens: long enough to read at full speed, short enough to come from everywhere.
constexpr uint64_t kSampleRun = 256;
// First tokens are read all at once.
constexpr size_t kMaxFirstTokens = 4096;

void TrainingOptions::declare_files(Command& command, const std::string& file, const std::string& resumed) {
  command.group("Input and output");
  command.inputs("KV", "kv files of one model; one of them can be -, standard input", inputs);
  output.declare(command, file);
  layers.declare(command);
  documents.declare(command);
  command.options(*this, {{"resume", resumed}, {"weights", "FILE"}});
}

OptionField TrainingOptions::rope_field(const std::string& what) {
  return {"rope",
          fmt::format("undo: learn {} of keys from before the rotary embedding, turned back by their index "
                      "in the document, as encode --rope undo does; it follows what the book says",
                      what),
          &rope};
}

OptionField TrainingOptions::weights_field(const std::string& what) {
  return {
      "weights",
      fmt::format(
          "sensitivity file: {} are learned so that errors of each layer count by what they cost the model "
          "(default: {})",
          what, what == "dictionaries" ? "as --normalize says" : "all alike"),
      &weights};
}

LayerWeights TrainingOptions::read_weights(const KvReader& kv) const {
  return weights.empty() ? LayerWeights() : cli::read_weights(weights, kv.model(), kv.name()).by_layer();
}

void TrainingOptions::check_resumed_weights() const {
  if (!resume.empty() && !weights.empty())
    throw usage_error("{} has its weights, and --resume keeps them: leave out --weights", resume);
}

void TrainingOptions::parse(Command& command, bool has_twin) {
  common.declare(command, false);
  command.parse();
  output.check(common);
  std::vector<std::string> read = inputs;
  read.push_back(weights);
  output.keep(read);
  read.push_back(resume);
  check_inputs(read);
  common.apply(command, has_twin);
}

/// Number of first tokens of a document that some of these layers leave out.
static uint64_t left_out_of(const KvReader& kv, const std::vector<int>& layers, size_t document) {
  uint64_t most = 0;
  for (const int layer : layers) most = std::max(most, kv.documents().left_out_of(layer, document));
  return most;
}

LayerKinds kinds_of_layers(const std::vector<KvReader>& files) {
  const auto alike = [&](int a, int b) {
    return std::ranges::all_of(files, [&](const KvReader& kv) {
      if (kv.model().layer_shape(a) != kv.model().layer_shape(b)) return false;
      for (size_t i = 0; i < kv.documents().count(); ++i)
        if (kv.documents().held(a, i) != kv.documents().held(b, i)) return false;
      return true;
    });
  };
  LayerKinds kinds;
  const ModelInfo& model = files.front().model();
  for (int layer = 0; layer < model.num_layers; ++layer) {
    if (model.layer_shape(layer).heads == 0) continue;
    const auto same =
        std::ranges::find_if(kinds, [&](const auto& kind) { return alike(kind.front(), layer); });
    if (same != kinds.end())
      same->push_back(layer);
    else
      kinds.push_back({layer});
  }
  return kinds;
}

std::vector<std::vector<int>> groups_in_kind(const std::vector<int>& kind, int64_t layer_group,
                                             const LayerSelection& chosen, const KvReader& kv) {
  if (layer_group < 1 || std::ssize(kind) % layer_group != 0)
    throw usage_error("--layer-group is {}; it must divide {}{} layers", layer_group,
                      kind.size() == as_size(kv.model().num_layers) ? "the model's " : "", kind.size());
  std::vector<int> layers;
  std::ranges::set_intersection(chosen.choose(kv.layers(), kv.name()), kind, std::back_inserter(layers));
  const GroupOf group_of = [&](int layer) {
    const auto count = static_cast<int>(layer_group), place = place_in_kind(kind, layer);
    const auto first = kind.begin() + (place - place % count);
    return std::vector<int>(first, first + count);
  };
  return chosen.given() ? whole_groups(layers, group_of, ErrorKind::usage, "--layers")
                        : whole_groups(layers, group_of, ErrorKind::bad_input, kv.name() + ": layers");
}

std::vector<Book> resumed_books(const Book& book, const LayerKinds& kinds, int num_layers,
                                const std::string& file) {
  LayerKinds stored = with_context(file, [&] { return kinds_in(book); });
  if (stored.empty()) stored = {consecutive(0, num_layers)};
  if (stored != kinds)
    throw bad_input("{}: it was trained on layers that differ in other ways than those of these caches",
                    file);
  return mapped<Book>(numbers_below<size_t>(kinds.size()), [&](size_t i) { return book_of_kind(book, i); });
}

std::vector<Run> choose_runs(const std::vector<KvReader>& files, const TokenChoice& choice) {
  const uint64_t max_tokens = choice.max_tokens;
  std::vector<Run> runs;
  uint64_t total = 0;
  for (const KvReader& kv : files)
    for (const size_t document : choice.documents.choose(kv.documents(), kv.name())) {
      const uint64_t length = kv.documents().length(document),
                     skip = std::max(choice.skip, left_out_of(kv, choice.layers, document));
      if (length <= skip) continue;
      runs.push_back({&kv, kv.documents().offsets[document] + skip, length - skip, skip, document});
      total += runs.back().count;
    }
  if (max_tokens == 0 || total <= max_tokens) return runs;
  // The sample's run i begins at the same share of all tokens as of the sample, but after the previous run: if the sample has
  // nearly all tokens, runs are longer than their distance.
  std::vector<Run> sample;
  const uint64_t pieces = (max_tokens + kSampleRun - 1) / kSampleRun;
  size_t at = 0;
  uint64_t before = 0, place = 0;  // of runs[at], and of the next token of the sample, among all tokens
  for (uint64_t i = 0; i < pieces; ++i) {
    place = std::max(place, static_cast<uint64_t>(static_cast<double>(total) *
                                                  (static_cast<double>(i) / static_cast<double>(pieces))));
    for (uint64_t left = std::min(kSampleRun, max_tokens - i * kSampleRun); left > 0;) {
      while (at < runs.size() && place >= before + runs[at].count) before += runs[at++].count;
      if (at == runs.size()) break;
      const Run& run = runs[at];
      const uint64_t skipped = place - before, count = std::min(left, run.count - skipped);
      sample.push_back({run.kv, run.first + skipped, count, run.index + skipped, run.document});
      place += count;
      left -= count;
    }
  }
  return sample;
}

std::vector<Run> choose_first_tokens(const std::vector<KvReader>& files, const TokenChoice& choice) {
  std::vector<Run> runs;
  for (const KvReader& kv : files)
    for (const size_t document : choice.documents.choose(kv.documents(), kv.name()))
      if (kv.documents().length(document) > 0 && left_out_of(kv, choice.layers, document) == 0)
        runs.push_back({&kv, kv.documents().offsets[document], 1, 0, document});
  const size_t apart = std::max<size_t>((runs.size() + kMaxFirstTokens - 1) / kMaxFirstTokens, 1);
  std::vector<Run> some;
  for (size_t i = 0; i < runs.size(); i += apart) some.push_back(runs[i]);
  return some;
}

std::string source_digest(const std::vector<Run>& runs, const std::vector<int>& groups) {
  Digest digest;
  const ModelInfo& model = runs.front().kv->model();
  digest.add(model.model);
  digest.add(model.source);
  for (const int group : groups) digest.add(static_cast<uint64_t>(group));
  for (const Run& run : runs) {
    digest.add(run.first);
    digest.add(run.count);
    digest.add(std::as_bytes(std::span<const uint64_t>(run.kv->positions(run.first, run.count))));
    if (run.kv->has_tokens())
      digest.add(std::as_bytes(std::span<const uint32_t>(run.kv->tokens(run.first, run.count))));
  }
  return digest.hex();
}

TrainedRows::TrainedRows(const std::vector<KvReader>& files, RopeChoice rope) {
  if (rope == RopeChoice::keep) return;
  rope_ = key_rope_of(files.front().model());
  check_can_undo(*rope_);
}

void TrainedRows::read(const GroupShape& shape, const Run& run, uint64_t skip, MatrixView<float> out) const {
  run.kv->read(shape, run.first + skip, out);
  if (rope_ && shape.side != Side::value)
    // By their index among the tokens that the layers hold, as a codec turns them.
    rope_->turn(TurnWay::back, shape.layers,
                run.index + skip - run.kv->documents().left_out_of(shape.first_layer(), run.document),
                out.columns(shape.column_of(Side::key), shape.side_width(Side::key)));
}

RunTokens::RunTokens(const TrainedRows& rows, const std::vector<Run>& runs)
    : rows_(rows), runs_(runs), starts_{0} {
  for (const Run& run : runs) starts_.push_back(starts_.back() + run.count);
}

template <class Body>
void RunTokens::for_each_piece(uint64_t first, MatrixView<float> out, const Body& body) const {
  size_t run =
      static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin()) - 1;
  for (size_t done = 0; done < out.rows(); ++run) {
    const uint64_t skip = first + done - starts_[run];
    const auto count = static_cast<size_t>(std::min<uint64_t>(runs_[run].count - skip, out.rows() - done));
    if (count > 0) body(runs_[run], skip, out.rows(done, count));
    done += count;
  }
}

void RunTokens::read(const GroupShape& shape, uint64_t first, MatrixView<float> out) const {
  for_each_piece(first, out, [&](const Run& run, uint64_t skip, MatrixView<float> rows) {
    rows_.read(shape, run, skip, rows);
  });
}

void RunTokens::read_features(const TokenFeatures& features, uint64_t first, MatrixView<float> out) const {
  for_each_piece(first, out, [&](const Run& run, uint64_t skip, MatrixView<float> rows) {
    const auto read = [&](uint64_t from, uint64_t count) {
      return run.kv->tokens(run.first - run.index + from, count);
    };
    features.gather(ids_with_lags(read, run.index + skip, rows.rows(), features.lags()), rows);
  });
}

TrainingFiles open_training_files(const std::vector<std::string>& inputs, const Team& team) {
  if (team.size() > 1 && std::ranges::find(inputs, "-") != inputs.end())
    throw usage_error("standard input is there for one rank only; {} ranks need files", team.size());
  TrainingFiles files;
  for (const auto& input : inputs) {
    files.caches.emplace_back(input);
    files.histories.push_back(files.caches.back().type().history);
  }
  const KvReader& first = files.caches.front();
  for (const KvReader& kv : files.caches) {
    check_same_model(kv.name(), kv.model(), first.name(), first.model());
    if (first.layers() != kv.layers())
      throw bad_input("{}: it has layers {}; {} has {}", kv.name(), ranges_text(kv.layers()), first.name(),
                      ranges_text(first.layers()));
  }
  return files;
}

void resume_options(const Command& command, Options& given, Options& stored,
                    const std::vector<std::string_view>& may_change, const std::string& file) {
  if (command.given("preset"))
    throw usage_error("--preset is for a training that begins; --resume keeps the options of {}", file);
  const auto targets = stored.fields();
  const auto sources = given.fields();
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string& name = sources[i].name;
    if (!command.given(name)) continue;
    if (std::ranges::find(may_change, name) != may_change.end())
      set_value(targets[i], value_of(sources[i]));
    else if (value_of(sources[i]) != value_of(targets[i]))
      throw usage_error("--{} is {}; {} was trained with {}, and --resume keeps that", name,
                        to_text(value_of(sources[i])), file, to_text(value_of(targets[i])));
  }
}

RopeChoice resume_rope(const Command& command, RopeChoice given, RopeChoice stored, const std::string& file) {
  if (command.given("rope") && given != stored)
    throw usage_error("--rope is {}; {} was trained with {}, and --resume keeps that", name_of(given), file,
                      name_of(stored));
  return stored;
}

}  // namespace kvcodec::cli
