#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "cli/codecs/coding.hpp"
#include "cli/frame/common.hpp"
#include "cli/inputs/model_runner.hpp"
#include "cli/inputs/training.hpp"
#include "formats/models/key_rope.hpp"
#include "lib/core/checked.hpp"
#include "lib/pipeline/token_features.hpp"
#include "lib/transform/codec/book.hpp"
#include "lib/transform/train.hpp"

namespace kvcodec::cli {
namespace {

enum class Weighing : uint8_t { scalar, fisher };
constexpr auto names_of(Weighing) { return std::to_array<std::string_view>({"scalar", "fisher"}); }

struct TrainTransformOptions final : CommandOptions {
  std::vector<std::string> inputs;
  std::string weights;
  std::optional<Weighing> metric;
  double temper = 0.2;      ///< on SmolLM2-135M 0.15 to 0.25 are equally good, and 1 is worse than 0
  bool has_temper = false;  ///< --temper is given
  int64_t max_tokens = 0;
  std::string model;
  int64_t features = 256;  ///< of a token
  int64_t predict_rank = 0;
  std::optional<RopeChoice> rope;
  TransformBookOptions book;

  std::vector<OptionField> fields() override {
    return {
        {"rope",
         "learn from keys from before the rotary embedding (undo) or as the cache has them (keep); default: "
         "undo if the cache says how they were turned",
         &rope},
        {"weights",
         "sensitivity file: errors of each layer's keys and values count by what they cost the model "
         "(default: all alike)",
         &weights},
        {"metric",
         "which weights of the sensitivity file to use: one number for each layer and side (scalar), or a "
         "matrix for each head (fisher); default: fisher if the file has it",
         &metric},
        {"temper",
         "power to which to raise the matrices of --metric fisher, keeping their traces: 1 uses them as "
         "they are, 0 only their traces",
         &temper, 0, 1},
        {"max-tokens",
         "learn from a sample of N tokens, in runs spread evenly over the documents (default: all)",
         &max_tokens, 1},
        {"model",
         "with --predict-tokens: the model that the caches are of, which reads its whole vocabulary once",
         &model},
        {"features",
         "with --predict-tokens: number of features of a token; more predict better, but the book stores "
         "them for the whole vocabulary",
         &features, 1, 1 << 16},
        {"predict-rank",
         "with --predict-tokens: rank of the linear map from features to vectors; 0: the lowest that loses "
         "almost nothing",
         &predict_rank, 0, 1 << 20}};
  }
};

/// Layers of one kind that are coded in groups of `group` layers.
struct TransformKind {
  std::vector<int> layers;
  int group = 1;
};

/// The vectors of all parts: one for each side that the book codes, or for both together, and each group of layers, kind after kind.
class PartVectors final : public VectorSource {
 public:
  /// runs: of tokens; firsts: of documents' first tokens, one each.
  PartVectors(const TrainedRows& rows, const std::vector<Run>& runs, const std::vector<Run>& firsts)
      : tokens_(rows, runs), firsts_(rows, firsts) {}

  /// Adds the parts of a kind, in the order of its book.
  void add(const TransformKind& kind, const ModelInfo& model, std::span<const Side> sides) {
    for (const Side side : sides)
      for (auto first = kind.layers.begin(); first != kind.layers.end(); first += kind.group) {
        const GroupShape shape{{first, first + kind.group}, model.layer_shape(*first), side};
        if (shape.width() > 0) shapes_.push_back(shape);
      }
  }

  const std::vector<GroupShape>& shapes() const { return shapes_; }
  std::vector<size_t> widths() const { return mapped<size_t>(shapes_, &GroupShape::width); }
  size_t parts() const override { return shapes_.size(); }
  size_t width(size_t part) const override { return shapes_[part].width(); }
  size_t head_dim(size_t part) const override { return shapes_[part].layer.values_of_class(); }
  uint64_t tokens() const override { return tokens_.count(); }
  void read(size_t part, uint64_t first, MatrixView<float> out) const override {
    tokens_.read(shapes_[part], first, out);
  }
  uint64_t first_tokens() const override { return firsts_.count(); }
  void read_first_tokens(size_t part, uint64_t first, MatrixView<float> out) const override {
    firsts_.read(shapes_[part], first, out);
  }

  /// From now on vectors are predicted from these features, which outlive this object.
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

/// True if a matrix for each head weighs errors: as requested, or else if the file has matrices for keys in the same state. Turning
/// a key turns the directions of its errors that matter.
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
  if (options.has_temper && !per_head)
    throw usage_error("--temper is for --metric fisher; of {} numbers are used, not matrices",
                      options.weights);
  std::vector<ErrorMetric> metrics;
  metrics.reserve(shapes.size());
  for (const GroupShape& shape : shapes) {
    std::vector<float> of_columns;  // a weight for each layer and side
    Matrix<double> blocks(per_head ? shape.width() : 0,
                          shape.dims());  // or a matrix for each head
    size_t row = 0;
    for (const Side side : sides_in(shape.side))
      for (const int layer : shape.layers) {
        const size_t width = shape.layer.width(side);
        const double cost = given && width > 0 ? given->cost(side, layer) : 1;
        of_columns.insert(of_columns.end(), width, static_cast<float>(cost));
        for (int head = 0; head < shape.heads() && per_head; ++head) {
          const Matrix<float>& block = given->file.info.fisher->of(side, layer, head);
          for (size_t i = 0; i < block.rows(); ++i, ++row)
            std::ranges::copy(block.row(i), blocks.row(row).begin());
        }
      }
    metrics.push_back(per_head ? ErrorMetric(tempered_blocks(std::move(blocks), options.temper))
                               : ErrorMetric(of_columns));
  }
  return metrics;
}

/// The part whose vectors contain a layer's keys or values, and their columns.
struct PartColumn {
  size_t part = 0, column = 0, width = 0;
};
PartColumn part_column(const std::vector<GroupShape>& shapes, Side side, int layer) {
  for (size_t part = 0; part < shapes.size(); ++part) {
    const GroupShape& shape = shapes[part];
    if (const size_t place = shape.place_of(layer);
        (shape.side == Side::both || shape.side == side) && place < shape.layers.size())
      return {part, shape.column_of(side, place), shape.layer.width(side)};
  }
  throw failed("no part has the {}s of layer {}", side, layer);
}

void check_memory(const PartVectors& vectors, const TrainTransformOptions& options) {
  const std::vector<size_t> widths = vectors.widths();
  const uint64_t bytes = learn_transform_bytes(widths, vectors.features(), vectors.tokens()),
                 memory = options.common.memory_bytes();
  if (bytes > memory)
    throw usage_error(
        "vectors of {} values take {} to learn, more than --memory ({}): take a smaller --layer-group",
        std::ranges::max(widths), size_text(bytes), size_text(memory));
}

/// Features of all tokens of the vocabulary; reads the model.
Matrix<float> learn_features(const TrainTransformOptions& options, const Run& run,
                             const std::vector<GroupShape>& shapes, const std::vector<ErrorMetric>& metrics,
                             bool before_rope) {
  const auto files = open_model(options.model);
  const ModelInfo own = model_info(options.model, *files, false);
  const ModelInfo& cached = run.kv->model();
  if (own.num_layers != cached.num_layers || own.num_kv_heads != cached.num_kv_heads ||
      own.head_dim != cached.head_dim || own.source != cached.source)
    throw bad_input("{}: it is not the model that {} was made with", options.model, run.kv->name());
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

/// Reduction in dB of the variance of each layer's keys, and of its values, by prediction; 0 if there is none.
using Explained = std::array<std::vector<double>, 2>;

Explained explained_by_layer(const std::vector<GroupShape>& shapes, const std::vector<int>& layers,
                             const LearnedTransform& learned) {
  Explained all;
  for (const Side side : kSides)
    for (const int layer : layers) {
      const PartColumn place = part_column(shapes, side, layer);
      const size_t width = place.width;
      double before = 0, after = 0;
      for (size_t c = place.column; c < place.column + width; ++c)
        before += learned.energies[place.part][c], after += std::max(learned.left[place.part][c], 0.0);
      all[static_cast<size_t>(side)].push_back(
          before > 0 ? 10 * std::log10(before / std::max(after, 1e-12 * before)) : 0.0);
    }
  return all;
}

struct TransformData {
  const TrainedRows& rows;
  const std::vector<Run>&runs, &firsts;
  const ModelInfo& model;
  LayerKinds kinds;
  std::vector<int> layers;  ///< of all kinds
  bool before_rope = false;
  const Team& team;
};

struct Learned {
  std::vector<TransformBook> books;  ///< of each kind
  std::vector<int> layers;           ///< of all kinds
  Explained explained;               ///< by these; empty where nothing is predicted
};

/// The kinds of layers with their groups, of one size if --layer-group says so.
std::vector<TransformKind> kinds_with_groups(const TransformBookOptions& options, const TransformData& data) {
  std::vector<TransformKind> kinds;
  for (const std::vector<int>& layers : data.kinds) {
    const GroupShape one{
        {layers.front()}, data.model.layer_shape(layers.front()), options.part_sides().front()};
    const int64_t group = options.layers_of_group(static_cast<int>(layers.size()), one.width());
    if (std::ssize(layers) % group != 0)
      throw usage_error("--layer-group is {}; it must divide {}{} layers", group,
                        layers.size() == as_size(data.model.num_layers) ? "the model's " : "", layers.size());
    kinds.push_back({layers, static_cast<int>(group)});
  }
  return kinds;
}

Learned learn(const TrainTransformOptions& options, const TransformData& data) {
  const ModelInfo& model = data.model;
  const std::vector<TransformKind> kinds = kinds_with_groups(options.book, data);
  PartVectors vectors(data.rows, data.runs, data.firsts);
  for (const TransformKind& kind : kinds) vectors.add(kind, model, options.book.part_sides());
  check_memory(vectors, options);
  const std::vector<ErrorMetric> metrics =
      metrics_of_parts(options, *data.runs.front().kv, vectors.shapes(), data.before_rope);
  std::optional<TokenFeatures> known;
  if (options.book.predict_tokens > 0) {
    Matrix<float> features;  // by one rank: one model in memory is enough
    if (data.team.rank() == 0)
      features = learn_features(options, data.runs.front(), vectors.shapes(), metrics, data.before_rope);
    data.team.broadcast(0, features);
    known.emplace(round_to_byte_rows(features), as_size(options.book.predict_tokens));
    vectors.predict_from(*known);
    check_memory(vectors, options);
  }
  ProgressBar bar("train-transform", "steps", options.common.quiet);
  const TransformTraining training{.max_bits = options.book.max_bits,
                                   .least_bits = options.book.least_bits,
                                   .vector_error = options.book.vector_error,
                                   .levels = {options.book.rate_distortion, options.book.unbias},
                                   .rank = as_size(options.predict_rank),
                                   .first_finer = options.book.first_finer};
  LearnedTransform learned = learn_transform(vectors, metrics, training, bar.callback(), data.team);
  Learned result{.books = {}, .layers = data.layers, .explained = {}};
  if (known) result.explained = explained_by_layer(vectors.shapes(), data.layers, learned);
  size_t part = 0;
  for (const TransformKind& kind : kinds) {
    TransformBook& book = result.books.emplace_back();
    const LayerShape shape = model.layer_shape(kind.layers.front());
    book.options = options.book;
    book.options.layer_group = kind.group;
    book.features = known;
    book.num_layers = static_cast<int>(kind.layers.size()), book.heads = shape.heads;
    book.head_dim = shape.key_dim, book.value_dim = value_dim_of(shape);
    book.classes = learned.levels.classes;
    book.measures = learned.levels.measures;
    for (;
         part < vectors.parts() && std::ranges::count(kind.layers, vectors.shapes()[part].first_layer()) > 0;
         ++part)
      book.parts.push_back({vectors.shapes()[part].side,
                            place_in_kind(kind.layers, vectors.shapes()[part].first_layer()),
                            std::move(learned.bases[part]), std::move(learned.levels.rungs[part]),
                            learned.firsts.empty() ? FirstTokens{} : std::move(learned.firsts[part])});
  }
  return result;
}

/// A step of the quantizer; components: those with this step, in all parts.
Measures measures_of(const std::vector<TransformBook>& books, size_t rung) {
  const TransformBook& book = books.front();
  size_t components = 0;
  for (const TransformBook& one : books)
    for (const TransformBook::Part& part : one.parts) components += part.rungs[rung].live().size();
  return {rounded("step", {"step"}, static_cast<double>(book.parts.front().rungs[rung].step), 3),
          decimal("bits_per_value", {"bits/value"}, book.measures[rung].bits, 3),
          rounded("weighted_error", {"weighted", "error"}, book.measures[rung].error, 3),
          number_of("components", {"components"}, components)};
}

std::string summary(const Learned& learned, const Book& book, const TrainTransformOptions& options) {
  const auto& [keys, values] = learned.explained;
  Json json = {{"output", options.output.path},
               {"digest", book.digest()},
               {"book_bytes", book.size_bytes()},
               {"layer_group", learned.books.front().options.layer_group},
               {"rungs", Json::array()}};
  MeasureTable table("rung"), predicted("layer");
  for (size_t i = 0; i < learned.books.front().steps(); ++i) {
    const Measures measures = measures_of(learned.books, i);
    json["rungs"].push_back(json_of(measures));
    table.row(std::to_string(i), measures);
  }
  for (const Side side : kSides)
    for (size_t layer = 0; layer < keys.size(); ++layer)
      json["predicted"].push_back({{"side", name_of(side)},
                                   {"layer", learned.layers[layer]},
                                   {"explained_db", learned.explained[static_cast<size_t>(side)][layer]}});
  if (options.common.json) return text_of(json);
  for (size_t layer = 0; layer < keys.size(); ++layer)
    predicted.row(std::to_string(learned.layers[layer]),
                  {decimal(nullptr, {"keys", "dB"}, keys[layer], 1),
                   decimal(nullptr, {"values", "dB"}, values[layer], 1)});
  return (keys.empty() ? "" : "Predicted from token ids, of the variance:\n" + predicted.text() + "\n") +
         table.text() +
         fmt::format("{}: {}, digest {}\n", options.output.path, size_text(book.size_bytes()), book.digest());
}

std::string train_transform(Command& command) {
  TrainTransformOptions options;
  command.describe(
      "KV ... [options] -o TRANSFORM",
      "Learns the basis that the codec transform needs, from caches of one model. The basis turns the keys "
      "and values of all heads of a group of layers into uncorrelated components whose errors cost the "
      "model alike. The output also holds, for a ladder of quantizer steps, how to entropy-code these "
      "components. Keys are turned back before the rotary embedding, unless --rope says otherwise. Learn from "
      "100,000 tokens or more, of text like that to be compressed or of a mixture.",
      "kvcodec train-transform kv.h5 -o transform.h5\n"
      "kvcodec train-transform kv.h5 --weights sensitivity.h5 -o transform.h5\n"
      "kvcodec train-transform kv.h5 --predict-tokens 4 --model DIR -o transform.h5");
  command.group("Input and output");
  command.inputs("KV", "kv files of one model; one of them can be -, standard input", options.inputs);
  options.output.declare(command, "transform file to write");
  options.documents.declare(command);
  command.options(options, {{"weights", "FILE"}, {"model", "PATH"}});
  command.group("Transform");
  command.options(options.book);
  options.common.declare(command);
  command.parse();
  std::vector<std::string> read = options.inputs;
  read.push_back(options.weights);
  options.check_files(command, read, options.book.predict_tokens > 0);
  options.book.check();
  options.has_temper = command.given("temper");
  const bool predicts = options.book.predict_tokens > 0;
  if (predicts && options.model.empty())
    throw usage_error("--predict-tokens needs the model that the caches are of; name it with --model");
  for (const char* const option : {"model", "features", "predict-rank"})
    if (command.given(option) && !predicts)
      throw usage_error("--{} is for --predict-tokens, which is not given", option);
  for (const char* const option : {"metric", "temper"})
    if (command.given(option) && options.weights.empty())
      throw usage_error("--{} is for --weights, which is not given", option);
  if (options.has_temper && options.metric == Weighing::scalar)
    throw usage_error("--temper is for --metric fisher");

  TrainingFiles files = open_training_files(options.inputs, command.team());
  const KvReader& first = files.caches.front();
  const ModelInfo& model = first.model();
  const LayerKinds kinds = kinds_of_layers(files.caches);
  size_t layers = 0;
  for (const auto& kind : kinds) layers += kind.size();
  if (first.layers().size() != layers)
    throw bad_input("{}: it has layers {} of {}; a transform is learned from all", first.name(),
                    ranges_text(first.layers()), model.num_layers);
  const TokenChoice choice{first.layers(), options.documents, static_cast<uint64_t>(options.max_tokens),
                           kTransformSink};
  const auto runs = choose_runs(files.caches, choice);
  if (runs.empty()) throw bad_input("{}: there are no tokens to train on", first.name());
  const auto firsts = choose_first_tokens(files.caches, choice);
  // Turned keys spread over many more directions, so the default is to undo it.
  const KeyRope key_rope = key_rope_of(model);
  const RopeChoice rope = options.rope.value_or(key_rope.turns() ? RopeChoice::undo : RopeChoice::keep);
  const TrainedRows rows(files.caches, rope);
  for (const KvReader& kv : files.caches)
    if (options.book.predict_tokens > 0 && !kv.has_tokens())
      throw bad_input("{}: it has no token ids to predict from", kv.name());
  Book book;
  const auto train = [&] {
    const RopeChoice state = key_rope.before() ? RopeChoice::undo : rope;
    Learned learned = learn(options, {rows, runs, firsts, model, kinds, first.layers(),
                                      state == RopeChoice::undo, command.team()});
    for (TransformBook& book_of_kind : learned.books) book_of_kind.rope = state;
    return learned;
  };
  const auto write = [&](OutputFile& output, Learned& learned) {
    std::vector<Book> books;
    for (TransformBook& one : learned.books) {
      one.source = source_digest(runs, first.layers());
      books.push_back(to_book(one));
    }
    book = join_kinds(kinds, std::move(books), model.num_layers);
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
