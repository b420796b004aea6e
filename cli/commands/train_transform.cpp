// kvcodec train-transform KV ... [options] -o TRANSFORM
//
//   --weights FILE    what errors cost the model (kvcodec sensitivity), by --metric
//   --sides, --layer-group N   what is one vector: keys and values together or apart, of so many layers
//   --most-bits, --least-bits   the rates that the book serves
//   --predict-tokens N --model PATH   predict from the ids of N tokens
//   --max-tokens N    learn from a sample
//
//   kvcodec train-transform kv.h5 --weights sensitivity.h5 -o transform.h5
#include <algorithm>
#include <optional>

#include "cli/codecs/coding.hpp"
#include "cli/codecs/weights.hpp"
#include "cli/frame/command_entry.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/json.hpp"
#include "cli/frame/product.hpp"
#include "cli/frame/progress.hpp"
#include "cli/frame/ranks.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/model_runner.hpp"
#include "cli/inputs/training.hpp"
#include "formats/cache/book_file.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/models/key_rope.hpp"
#include "formats/models/model_files.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/model/llama.hpp"
#include "lib/pipeline/token_features.hpp"
#include "lib/transform/codec/book.hpp"
#include "lib/transform/train.hpp"

namespace kvcodec::cli {
namespace {

/// What errors are weighed by.
enum class Weighing : uint8_t { scalar, fisher };
constexpr auto names_of(Weighing) { return std::to_array<std::string_view>({"scalar", "fisher"}); }

struct TrainTransformOptions final : Options {
  std::vector<std::string> inputs;
  std::string weights;
  std::optional<Weighing> metric;
  double temper = 0.2;   ///< on SmolLM2-135M 0.15 to 0.25 are level; the whole of it is worse than none
  bool tempers = false;  ///< --temper is given
  int64_t max_tokens = 0;
  std::string model;
  int64_t features = 256;  ///< of a token
  int64_t predict_rank = 0;
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
             "which weights of the sensitivity file to use: one number for each layer and side (scalar), or "
             "a matrix for each head (fisher); default: fisher if the file has it",
         .target = &metric},
        {.name = "temper",
         .help =
             "power to which to raise the matrices of --metric fisher, keeping their traces: 1 uses them as "
             "they are, 0 only their traces",
         .target = &temper,
         .min = 0,
         .max = 1},
        {.name = "max-tokens",
         .help = "learn from a sample of N tokens, in runs spread evenly over the documents (default: all)",
         .target = &max_tokens,
         .min = 1},
        {.name = "model",
         .help =
             "with --predict-tokens: the model that the caches are of, which reads its whole vocabulary once",
         .target = &model},
        {.name = "features",
         .help = "with --predict-tokens: number of features of a token; more predict better, but the book "
                 "stores them for the whole vocabulary",
         .target = &features,
         .min = 1,
         .max = 1 << 16},
        {.name = "predict-rank",
         .help = "with --predict-tokens: rank of the linear map from features to vectors; 0: the lowest that "
                 "loses almost nothing",
         .target = &predict_rank,
         .min = 0,
         .max = 1 << 20}};
  }
};

/// The vectors of all parts: of each group of layers, side by side of the book's.
class PartVectors final : public VectorSource {
 public:
  /// runs: of tokens; firsts: of documents' first tokens, one each.
  PartVectors(const TrainedRows& rows, const std::vector<Run>& runs, const std::vector<Run>& firsts,
              const ModelInfo& model, const TransformBookOptions& options)
      : tokens_(rows, runs), firsts_(rows, firsts) {
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
  uint64_t first_tokens() const override { return firsts_.count(); }
  void read_first_tokens(size_t part, uint64_t first, MatrixView<float> out) const override {
    firsts_.read(shapes_[part], first, out);
  }

  /// From now on vectors are predicted from these, which outlive this.
  void predict_from(const TokenFeatures& features) { features_ = &features; }
  size_t features() const override { return features_ ? features_->width() : 0; }
  void read_features(uint64_t first, MatrixView<float> out) const override {
    tokens_.read_features(*features_, first, out);
  }

 private:
  RunTokens tokens_, firsts_;
  std::vector<GroupShape> shapes_;
  const TokenFeatures* features_ = nullptr;
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

/// Calls body(side, layer) for all that lies one behind the other in vectors of that shape.
template <class Body>
void for_each_layer(const GroupShape& shape, const Body& body) {
  for (const Side side : sides_in(shape.side))
    for (int layer = shape.first_layer; layer < shape.first_layer + shape.layers; ++layer) body(side, layer);
}

/// A weight for each layer and side.
ErrorMetric scalar_metric(const GroupShape& shape, const Weights* weights) {
  std::vector<float> of_columns;
  for_each_layer(shape, [&](Side side, int layer) {
    const double cost = weights ? weights->cost(side, layer) : 1;
    of_columns.insert(of_columns.end(), shape.side_width() / as_size(shape.layers), static_cast<float>(cost));
  });
  return ErrorMetric(of_columns);
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
bool weighs_by_heads(const TrainTransformOptions& options, const Weights* weights, bool before_rope) {
  if (options.metric == Weighing::scalar) return false;
  const Fisher* const fisher = weights && weights->file.info.fisher ? &*weights->file.info.fisher : nullptr;
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

std::vector<ErrorMetric> metrics_of_parts(const TrainTransformOptions& options, const KvReader& kv,
                                          const std::vector<GroupShape>& shapes, bool before_rope) {
  std::optional<Weights> weights;
  if (!options.weights.empty()) weights = read_weights(options.weights, kv.model(), kv.name());
  const Weights* const given = weights ? &*weights : nullptr;
  const bool per_head = weighs_by_heads(options, given, before_rope);
  if (options.tempers && !per_head)
    throw usage_error("--temper is for --metric fisher; of {} numbers are used, not matrices",
                      options.weights);
  std::vector<ErrorMetric> metrics;
  metrics.reserve(shapes.size());
  for (const GroupShape& shape : shapes)
    metrics.push_back(per_head ? fisher_metric(shape, *weights->file.info.fisher, options.temper)
                               : scalar_metric(shape, given));
  return metrics;
}

/// Where a layer's keys or values lie: the part whose vectors have them, and their first column.
struct PartColumn {
  size_t part = 0, column = 0;
};
PartColumn part_column(const std::vector<GroupShape>& shapes, Side side, int layer) {
  for (size_t part = 0; part < shapes.size(); ++part) {
    const GroupShape& shape = shapes[part];
    const int of_group = layer - shape.first_layer;
    if ((shape.side == Side::both || shape.side == side) && of_group >= 0 && of_group < shape.layers)
      return {part, shape.column_of(side) + as_size(of_group) * shape.side_width() / as_size(shape.layers)};
  }
  throw failed("no part has the {}s of layer {}", side, layer);
}

/// Throws Error(bad_input) unless the caches are that model's.
void check_same_model(const std::string& path, const ModelInfo& model, const KvReader& kv) {
  const ModelInfo& cached = kv.model();
  if (model.num_layers != cached.num_layers || model.num_kv_heads != cached.num_kv_heads ||
      model.head_dim != cached.head_dim || model.source != cached.source)
    throw bad_input("{}: it is not the model that {} was made with", path, kv.name());
}

/// What learning takes must fit.
void check_memory(const PartVectors& vectors, const TrainTransformOptions& options) {
  const uint64_t bytes = learn_transform_bytes(vectors), memory = options.common.memory_bytes();
  if (bytes > memory)
    throw usage_error(
        "vectors of {} values take {} to learn, more than --memory ({}): take a smaller --layer-group",
        vectors.width(), size_text(bytes), size_text(memory));
}

/// What the tokens of the vocabulary are predicted from: the model reads them all.
Matrix<float> learn_features(const TrainTransformOptions& options, const Run& run,
                             const std::vector<GroupShape>& shapes, const std::vector<ErrorMetric>& metrics,
                             bool before_rope) {
  const auto files = open_model(options.model);
  check_same_model(options.model, model_info(options.model, *files, false), *run.kv);
  const uint64_t bytes = token_features_bytes(files->description().config, as_size(options.features)),
                 memory = options.common.memory_bytes();
  if (bytes > memory)
    throw usage_error(
        "{} features of {} tokens take {} to make, more than --memory ({}): take fewer --features",
        options.features, files->description().config.vocabulary_size, size_text(bytes), size_text(memory));
  LlamaModel model = make_model(*files, options.common);
  keep_weights(model, {.tokens = as_size(model.config().vocabulary_size), .logits = false});
  const auto weigh = [&](Side side, int layer, MatrixView<const float> rows) {
    const PartColumn place = part_column(shapes, side, layer);
    return metrics[place.part].times_root(rows, place.column);
  };
  ProgressBar bar("train-transform", "tokens of the vocabulary", options.common.quiet);
  return token_features(model, weigh,
                        {.first = run.kv->tokens(run.first - run.index, 1).front(),
                         .count = as_size(options.features),
                         .before_rope = before_rope,
                         .seed = static_cast<uint64_t>(options.common.seed)},
                        bar.callback());
}

/// What prediction takes off the variance of a layer's keys or values; 0 where there is none.
struct Explained {
  Side side = Side::key;
  int layer = 0;
  double decibels = 0;
};

/// Keys of all layers, then values.
std::vector<Explained> explained_by_layer(const std::vector<GroupShape>& shapes, const ModelInfo& model,
                                          const LearnedTransform& learned) {
  std::vector<Explained> all;
  for (const Side side : kSides)
    for (int layer = 0; layer < model.num_layers; ++layer) {
      const PartColumn place = part_column(shapes, side, layer);
      const size_t width = shapes[place.part].side_width() / as_size(shapes[place.part].layers);
      double before = 0, after = 0;
      for (size_t c = place.column; c < place.column + width; ++c)
        before += learned.energies[place.part][c], after += std::max(learned.left[place.part][c], 0.0);
      all.push_back(
          {side, layer, before > 0 ? 10 * std::log10(before / std::max(after, 1e-12 * before)) : 0.0});
    }
  return all;
}

/// What is learned, and what is said of it.
struct Learned {
  TransformBook book;
  std::vector<Explained> explained;  ///< empty where nothing is predicted
};

Learned learn(const TrainTransformOptions& options, const TrainedRows& rows, const std::vector<Run>& runs,
              const std::vector<Run>& firsts, const ModelInfo& model, bool before_rope, const Team& team) {
  Learned result;
  TransformBook& book = result.book;
  book.options = options.book;
  if (book.options.layer_group == 0)
    book.options.layer_group = automatic_group(model, book.options.part_sides().front());
  if (model.num_layers % book.options.layer_group != 0)
    throw usage_error("--layer-group is {}; it must divide the model's {} layers", book.options.layer_group,
                      model.num_layers);
  PartVectors vectors(rows, runs, firsts, model, book.options);
  check_memory(vectors, options);
  const std::vector<ErrorMetric> metrics =
      metrics_of_parts(options, *runs.front().kv, vectors.shapes(), before_rope);
  if (book.options.predict_tokens > 0) {
    Matrix<float> features;  // one model in memory is enough
    if (team.rank() == 0)
      features = learn_features(options, runs.front(), vectors.shapes(), metrics, before_rope);
    team.broadcast(0, features);
    book.features.emplace(round_to_byte_rows(features), as_size(options.book.predict_tokens));
    vectors.predict_from(*book.features);
    check_memory(vectors, options);
  }
  ProgressBar bar("train-transform", "steps", options.common.quiet);
  const TransformTraining training{.most_bits = options.book.most_bits,
                                   .least_bits = options.book.least_bits,
                                   .levels = {options.book.rate_distortion, options.book.unbias},
                                   .rank = as_size(options.predict_rank),
                                   .head_dim = as_size(model.head_dim),
                                   .first_finer = options.book.first_finer};
  LearnedTransform learned = learn_transform(vectors, metrics, training, bar.callback(), team);
  if (book.features) result.explained = explained_by_layer(vectors.shapes(), model, learned);
  book.num_layers = model.num_layers, book.heads = model.num_kv_heads, book.head_dim = model.head_dim;
  book.classes = std::move(learned.levels.classes);
  book.measures = std::move(learned.levels.measures);
  for (size_t i = 0; i < vectors.parts(); ++i)
    book.parts.push_back({vectors.shapes()[i].side, vectors.shapes()[i].first_layer,
                          std::move(learned.bases[i]), std::move(learned.levels.rungs[i]),
                          learned.firsts.empty() ? FirstTokens{} : std::move(learned.firsts[i])});
  return result;
}

/// By layer, how much of the variance of keys and of values prediction takes off.
std::string explained_table(std::span<const Explained> explained) {
  Table table({{"layer"}, {"keys", "dB"}, {"values", "dB"}});
  const size_t layers = explained.size() / 2;
  for (size_t i = 0; i < layers; ++i)
    table.row({std::to_string(explained[i].layer), fmt::format("{:.1f}", explained[i].decibels),
               fmt::format("{:.1f}", explained[layers + i].decibels)});
  return "Predicted from token ids, of the variance:\n" + table.text() + "\n";
}

/// Components that live at a step, of all parts.
size_t live_components(const TransformBook& book, size_t rung) {
  size_t count = 0;
  for (const TransformBook::Part& part : book.parts) count += part.rungs[rung].live().size();
  return count;
}

std::string summary(const Learned& learned, const Book& book, const TrainTransformOptions& options) {
  const TransformBook& transform = learned.book;
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
    for (const Explained& one : learned.explained)
      json["predicted"].push_back(
          {{"side", name_of(one.side)}, {"layer", one.layer}, {"explained_db", one.decibels}});
    return text_of(json);
  }
  Table table({{"rung"}, {"step"}, {"bits/value"}, {"weighted", "error"}, {"components"}});
  for (size_t i = 0; i < transform.steps(); ++i)
    table.row({std::to_string(i), significant(static_cast<double>(transform.parts.front().rungs[i].step), 3),
               fmt::format("{:.3f}", transform.measures[i].bits), significant(transform.measures[i].error, 3),
               grouped(live_components(transform, i))});
  return (learned.explained.empty() ? "" : explained_table(learned.explained)) + table.text() +
         fmt::format("{}: {}, digest {}\n", options.output.path, size_text(book.size_bytes()), book.digest());
}

void declare(Command& command, TrainTransformOptions& options) {
  command.describe(
      "KV ... [options] -o TRANSFORM",
      "Learns the basis that the codec transform needs, from caches of one model. The basis turns the keys "
      "and values of all heads of a group of layers into uncorrelated components whose errors cost the "
      "model alike. The product also holds, for a ladder of quantizer steps, how to entropy-code these "
      "components. Keys are turned back before the rotary embedding, unless --rope says otherwise. Learn from "
      "100,000 tokens or more, of text like that to be compressed or of a mixture.",
      "kvcodec train-transform kv.h5 -o transform.h5\n"
      "kvcodec train-transform kv.h5 --weights sensitivity.h5 --layer-group 10 -o transform.h5\n"
      "kvcodec train-transform kv.h5 --predict-tokens 4 --model data/demo-model -o transform.h5");
  command.group("Input and output");
  command.inputs("KV", "kv files of one model; one of them can be -, standard input", options.inputs);
  options.output.declare(command, "transform file to write");
  options.documents.declare(command);
  command.options(options, {{"weights", "FILE"}, {"model", "PATH"}});
  command.group("Transform");
  command.options(options.book);
  options.common.declare(command);
}

/// Options of predictions belong together.
void check_prediction(const Command& command, const TrainTransformOptions& options) {
  if (options.book.predict_tokens > 0 && options.model.empty())
    throw usage_error("--predict-tokens needs the model that the caches are of; name it with --model");
  if (options.book.predict_tokens > 0) return;
  for (const char* const option : {"model", "features", "predict-rank"})
    if (command.given(option)) throw usage_error("--{} is for --predict-tokens, which is not given", option);
}

/// Likewise what errors are weighed by.
void check_weighing(const Command& command, const TrainTransformOptions& options) {
  for (const char* const option : {"metric", "temper"})
    if (command.given(option) && options.weights.empty())
      throw usage_error("--{} is for --weights, which is not given", option);
  if (options.tempers && options.metric == Weighing::scalar)
    throw usage_error("--temper is for --metric fisher");
}

std::string train_transform(Command& command) {
  TrainTransformOptions options;
  declare(command, options);
  command.parse();
  options.output.check(options.common);
  std::vector<std::string> read = options.inputs;
  read.push_back(options.weights);
  check_inputs(read);
  options.output.keep(read);
  options.common.apply(command, options.book.predict_tokens > 0);
  options.book.check();
  check_prediction(command, options);
  options.tempers = command.given("temper");
  check_weighing(command, options);

  TrainingFiles files = open_training_files(options.inputs, command.team());
  const KvReader& first = files.caches.front();
  const ModelInfo& model = first.model();
  if (first.layers().size() != as_size(model.num_layers))
    throw bad_input("{}: it has layers {} of {}; a transform is learned from all", first.name(),
                    ranges_text(first.layers()), model.num_layers);
  const auto runs =
      choose_runs(files.caches, options.documents, static_cast<uint64_t>(options.max_tokens), kTransformSink);
  if (runs.empty()) throw bad_input("{}: there are no tokens to train on", first.name());
  const auto firsts = choose_first_tokens(files.caches, options.documents);
  // Turned keys lie in many more directions.
  const KeyRope key_rope = key_rope_of(model);
  const RopeChoice rope = options.rope.value_or(key_rope.turns() ? RopeChoice::undo : RopeChoice::keep);
  const TrainedRows rows(files.caches, rope);
  for (const KvReader& kv : files.caches)
    if (options.book.predict_tokens > 0 && !kv.has_tokens())
      throw bad_input("{}: it has no token ids to predict from", kv.name());
  Book book;
  const auto train = [&] {
    const RopeChoice state = key_rope.before() ? RopeChoice::undo : rope;
    Learned learned = learn(options, rows, runs, firsts, model, state == RopeChoice::undo, command.team());
    learned.book.rope = state;
    return learned;
  };
  const auto write = [&](OutputFile& output, Learned& learned) {
    learned.book.source = source_digest(runs, first.layers());
    book = to_book(learned.book);
    options.common.record_device(command);
    write_book(output, book, model, command.provenance(merged_history(files.histories)));
  };
  return train_to_file(command.team(), options.output, train, write,
                       [&](const Learned& learned) { return summary(learned, book, options); });
}

}  // namespace

CommandEntry train_transform_command() {
  return {CommandGroup::prepare, 5,   "train-transform", "learn a basis for the codec transform",
          train_transform,       true};
}

}  // namespace kvcodec::cli
