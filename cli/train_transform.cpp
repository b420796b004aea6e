// kvcodec train-transform KV ... [options] -o TRANSFORM
//
//   --weights FILE    what errors cost the model (kvcodec sensitivity), by --metric
//   --sides, --layer-group N   what is one vector: keys and values together or apart, of so many layers
//   --most-bits, --least-bits   the rates that the book serves
//   --max-tokens N    learn from a sample
//
//   kvcodec train-transform kv.h5 --weights sensitivity.h5 -o transform.h5
#include <algorithm>
#include <optional>

#include "cli/coding.hpp"
#include "cli/common.hpp"
#include "cli/json.hpp"
#include "cli/product.hpp"
#include "cli/progress.hpp"
#include "cli/subcommands.hpp"
#include "cli/text.hpp"
#include "cli/training.hpp"
#include "formats/book_file.hpp"
#include "formats/key_rope.hpp"
#include "formats/kv_file.hpp"
#include "formats/sensitivity_file.hpp"
#include "lib/codec/transform/book.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/transform/train.hpp"

namespace kvcodec::cli {
namespace {

/// What errors are weighed by.
enum class Metric : uint8_t { scalar, fisher };
constexpr auto names_of(Metric) { return std::to_array<std::string_view>({"scalar", "fisher"}); }

struct TrainTransformOptions final : Options {
  std::vector<std::string> inputs;
  std::string weights;
  std::optional<Metric> metric;
  double temper = 0.2;  ///< on SmolLM2-135M 0.15 to 0.25 are level; the whole of it is worse than none
  int64_t max_tokens = 0;
  CommonOptions common;
  OutputOptions output;
  DocumentSelection documents;
  std::optional<RopeChoice> rope;
  TransformBookOptions book;

  std::vector<OptionField> fields() override {
    return {
        {.name = "rope",
         .help =
             "learn from keys from before the rotary embedding (undo) or as the cache has them (keep); default: undo if "
             "the cache says how they were turned",
         .target = &rope},

        {.name = "weights",
         .help = "sensitivity file: errors of each layer's keys and values count by what they cost the model "
                 "(default: all alike)",
         .target = &weights},
        {.name = "metric",
         .help =
             "of the sensitivity file: one number for each layer and side (scalar), or a matrix for each head "
             "(fisher); default: fisher if it is there",
         .target = &metric},
        {.name = "temper",
         .help =
             "power that the matrices of heads are raised to; their traces stay. 1 trusts them wholly, 0 takes "
             "their traces alone",
         .target = &temper,
         .min = 0,
         .max = 1},
        {.name = "max-tokens",
         .help = "learn from a sample of N tokens, in runs spread evenly over the documents (default: all)",
         .target = &max_tokens,
         .min = 1}};
  }
};

/// The vectors of all parts: of each group of layers, side by side of the book's.
class PartVectors final : public VectorSource {
 public:
  PartVectors(const TrainedRows& rows, const std::vector<Run>& runs, const ModelInfo& model,
              const TransformBookOptions& options)
      : tokens_(rows, runs) {
    const auto layers = static_cast<int>(options.layer_group);
    for (const Side side : options.part_sides())
      for (int first = 0; first < model.num_layers; first += layers)
        shapes_.push_back(group_shape(model, first, layers, side));
  }

  const std::vector<GroupShape>& shapes() const { return shapes_; }
  size_t parts() const override { return shapes_.size(); }
  size_t width() const override { return shapes_.front().width(); }
  uint64_t tokens() const override { return tokens_.count(); }
  void read(size_t part, uint64_t first, MatrixView<float> out) const override {
    tokens_.read(shapes_[part], first, out);
  }

 private:
  RunTokens tokens_;
  std::vector<GroupShape> shapes_;
};

/// The most layers that divide the model's and whose vectors are no wider than kMostAutoWidth.
int64_t automatic_group(const ModelInfo& model, Side side) {
  int best = 1;
  for (int layers = 1; layers <= model.num_layers; ++layers)
    if (model.num_layers % layers == 0 &&
        group_shape(model, 0, layers, side).width() <= TransformBookOptions::kMostAutoWidth)
      best = layers;
  return best;
}

/// Throws Error(bad_input) unless the file is of a model of that shape.
SensitivityFile read_weights(const std::string& name, const ModelInfo& model) {
  SensitivityFile file = read_sensitivities(name);
  const ModelInfo& measured = file.info.model;
  if (measured.num_layers != model.num_layers || measured.num_kv_heads != model.num_kv_heads ||
      measured.head_dim != model.head_dim)
    throw bad_input("{}: it is of {} layers with {} heads of {}; the cache has {}, {} of {}", name,
                    measured.num_layers, measured.num_kv_heads, measured.head_dim, model.num_layers,
                    model.num_kv_heads, model.head_dim);
  return file;
}

/// Calls body(side, layer) for all that lies one behind the other in vectors of that shape.
template <class Body>
void for_each_layer(const GroupShape& shape, const Body& body) {
  for (const Side side : sides_in(shape.side))
    for (int layer = shape.first_layer; layer < shape.first_layer + shape.layers; ++layer) body(side, layer);
}

/// A weight for each layer and side.
ErrorMetric scalar_metric(const GroupShape& shape, const SensitivityFile* file, const std::string& name) {
  std::vector<float> weights;
  for_each_layer(shape, [&](Side side, int layer) {
    // Noise of that variance was put on every value of a token: what it cost is the sum over all of them.
    const double nats = file ? file->info.layers[as_size(layer)][static_cast<size_t>(side)].nats.mean : 1;
    if (!(nats > 0))
      throw bad_input("{}: layer {} costs {} nats for a unit of noise on its {}s; it must be more than 0",
                      name, layer, nats, side);
    weights.insert(weights.end(), shape.side_width() / as_size(shape.layers), static_cast<float>(nats));
  });
  return ErrorMetric(weights);
}

/// A matrix for each head.
ErrorMetric fisher_metric(const GroupShape& shape, const Fisher& fisher, double power) {
  Matrix<double> blocks(shape.width(), as_size(shape.head_dim));
  size_t row = 0;
  for_each_layer(shape, [&](Side side, int layer) {
    for (int head = 0; head < shape.heads; ++head) {
      const Matrix<float>& block = fisher.of(side, layer, head);
      for (size_t i = 0; i < block.rows(); ++i, ++row)
        std::ranges::copy(block.row(i), blocks.row(row).begin());
    }
  });
  return ErrorMetric(tempered_blocks(std::move(blocks), power));
}

/// As asked; else by matrices if the file has them, of keys like those that are learned from: turning a key turns the
/// directions in which its errors hurt.
bool weighs_by_heads(const TrainTransformOptions& options, const SensitivityFile* file, bool before_rope) {
  if (options.metric == Metric::scalar) return false;
  const Fisher* const fisher = file && file->info.fisher ? &*file->info.fisher : nullptr;
  if (fisher && fisher->keys_before_rope == before_rope) return true;
  const auto state = [](bool before) {
    return before ? "before the rotary embedding" : "as attention takes them";
  };
  if (options.metric && !fisher)
    throw usage_error(
        "--metric fisher needs --weights with a file that kvcodec sensitivity made with --metric fisher");
  if (options.metric)
    throw usage_error(
        "{}: its matrices are of keys {}, and the transform is learned from keys {}: take --metric scalar",
        options.weights, state(!before_rope), state(before_rope));
  if (fisher)
    options.common.note("{}: its matrices are of keys {} and are not used; its numbers are", options.weights,
                        state(!before_rope));
  return false;
}

std::vector<ErrorMetric> metrics_of_parts(const TrainTransformOptions& options, const ModelInfo& model,
                                          const std::vector<GroupShape>& shapes, bool before_rope) {
  std::optional<SensitivityFile> file;
  if (!options.weights.empty()) file = read_weights(options.weights, model);
  const bool per_head = weighs_by_heads(options, file ? &*file : nullptr, before_rope);
  std::vector<ErrorMetric> metrics;
  metrics.reserve(shapes.size());
  for (const GroupShape& shape : shapes)
    metrics.push_back(per_head ? fisher_metric(shape, *file->info.fisher, options.temper)
                               : scalar_metric(shape, file ? &*file : nullptr, options.weights));
  return metrics;
}

TransformBook learn(const TrainTransformOptions& options, const TrainedRows& rows,
                    const std::vector<Run>& runs, const ModelInfo& model, bool before_rope) {
  TransformBook book;
  book.options = options.book;
  if (book.options.layer_group == 0)
    book.options.layer_group = automatic_group(model, book.options.part_sides().front());
  if (model.num_layers % book.options.layer_group != 0)
    throw usage_error("--layer-group is {}; it must divide the model's {} layers", book.options.layer_group,
                      model.num_layers);
  const PartVectors vectors(rows, runs, model, book.options);
  if (const uint64_t bytes = learn_transform_bytes(vectors), memory = options.common.memory_bytes();
      bytes > memory)
    throw usage_error(
        "vectors of {} values take {} to learn, more than --memory ({}): take a smaller --layer-group",
        vectors.width(), size_text(bytes), size_text(memory));
  ProgressBar bar("train-transform", "steps", options.common.quiet);
  const TransformTraining training{
      options.book.most_bits, options.book.least_bits, {options.book.rate_distortion, options.book.unbias}};
  LearnedTransform learned = learn_transform(
      vectors, metrics_of_parts(options, model, vectors.shapes(), before_rope), training, bar.callback());
  book.num_layers = model.num_layers, book.heads = model.num_kv_heads, book.head_dim = model.head_dim;
  book.classes = std::move(learned.levels.classes);
  book.measures = std::move(learned.levels.measures);
  for (size_t i = 0; i < vectors.parts(); ++i)
    book.parts.push_back({vectors.shapes()[i].side, vectors.shapes()[i].first_layer,
                          std::move(learned.bases[i]), std::move(learned.levels.rungs[i])});
  return book;
}

/// Components that live at a step, of all parts.
size_t live_components(const TransformBook& book, size_t rung) {
  size_t count = 0;
  for (const TransformBook::Part& part : book.parts) count += part.rungs[rung].live().size();
  return count;
}

std::string summary(const TransformBook& transform, const Book& book, const TrainTransformOptions& options) {
  if (options.common.json) {
    Json json = {{"output", options.output.path},
                 {"digest", book.digest()},
                 {"book_bytes", book.size_bytes()},
                 {"layer_group", transform.options.layer_group},
                 {"rungs", Json::array()}};
    for (size_t i = 0; i < transform.steps(); ++i)
      json["rungs"].push_back({{"step", transform.parts.front().rungs[i].step},
                               {"bits_per_value", transform.measures[i].bits},
                               {"weighted_error", transform.measures[i].error},
                               {"components", live_components(transform, i)}});
    return text_of(json);
  }
  Table table({{"rung"}, {"step"}, {"bits/value"}, {"weighted", "error"}, {"components"}});
  for (size_t i = 0; i < transform.steps(); ++i)
    table.row({std::to_string(i), significant(static_cast<double>(transform.parts.front().rungs[i].step), 3),
               fmt::format("{:.3f}", transform.measures[i].bits), significant(transform.measures[i].error, 3),
               grouped(live_components(transform, i))});
  return table.text() +
         fmt::format("{}: {}, digest {}\n", options.output.path, size_text(book.size_bytes()), book.digest());
}

void declare(Command& command, TrainTransformOptions& options) {
  command.describe(
      "KV ... [options] -o TRANSFORM",
      "Learns the basis that the codec transform needs, from caches of one model: the keys and values "
      "of all heads of some layers become components that are uncorrelated and whose errors "
      "cost alike, and for a ladder of quantizer steps what their levels take. Keys are best stored "
      "before the rotary embedding (dump-kv --pre-rope). Learn from 100,000 tokens and more, of text "
      "like that to be compressed or of a mixture.",
      "kvcodec train-transform kv.h5 -o transform.h5\n"
      "kvcodec train-transform kv.h5 --weights sensitivity.h5 --layer-group 10 -o transform.h5");
  command.group("Input and output");
  command.inputs("KV", "kv files of one model; one of them can be -, standard input", options.inputs);
  options.output.declare(command, "transform file to write");
  options.documents.declare(command);
  command.options(options, {{"weights", "FILE"}});
  command.group("Transform");
  command.options(options.book);
  options.common.declare(command);
}

}  // namespace

std::string train_transform(Command& command) {
  TrainTransformOptions options;
  declare(command, options);
  command.parse();
  options.output.check(options.common);
  std::vector<std::string> read = options.inputs;
  read.push_back(options.weights);
  check_inputs(read);
  options.common.apply(command, false);
  options.book.check();

  TrainingFiles files = open_training_files(options.inputs);
  const KvReader& first = files.caches.front();
  const ModelInfo& model = first.model();
  if (first.layers().size() != as_size(model.num_layers))
    throw bad_input("{}: it has layers {} of {}; a transform is learned from all", first.name(),
                    ranges_text(first.layers()), model.num_layers);
  const auto runs =
      choose_runs(files.caches, options.documents, static_cast<uint64_t>(options.max_tokens), kTransformSink);
  if (runs.empty()) throw bad_input("{}: there are no tokens to train on", first.name());
  // Turned keys lie in many more directions.
  const KeyRope key_rope = key_rope_of(model);
  const RopeChoice rope = options.rope.value_or(key_rope.turns() ? RopeChoice::undo : RopeChoice::keep);
  const TrainedRows rows(files.caches, rope);
  TransformBook transform;
  Book book;
  const auto write = [&](OutputFile& output) {
    const RopeChoice learned = key_rope.before() ? RopeChoice::undo : rope;
    transform = learn(options, rows, runs, model, learned == RopeChoice::undo);
    transform.rope = learned;
    transform.source = source_digest(runs, first.layers());
    book = to_book(transform);
    write_book(output, book, model, command.provenance(merged_history(files.histories)));
    return 0;
  };
  return run_to_file(options.output, write, [&](int) { return summary(transform, book, options); });
}

}  // namespace kvcodec::cli
