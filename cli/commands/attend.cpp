// kvcodec attend CODES --queries KV [options] [-o OUT]
//
//   --queries KV        the cache the codes were made from, with queries
//   --book FILE         the book the codes were made with, unless it is inside
//   --check             decode and multiply too: difference and time
//   --select SELECTION  attend to selected tokens only
//
//   kvcodec attend codes.h5 --queries kv.h5 --check
#include "lib/pipeline/attend.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "cli/codecs/coding.hpp"
#include "cli/frame/command_entry.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/json.hpp"
#include "cli/frame/measures.hpp"
#include "cli/frame/product.hpp"
#include "cli/frame/progress.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/matching.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/results/outputs_file.hpp"
#include "formats/results/selection_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/engine/engine.hpp"
#include "lib/metrics/reconstruction.hpp"
#include "lib/metrics/selection.hpp"
#include "lib/pipeline/chosen.hpp"

namespace kvcodec::cli {
namespace {

struct AttendOptions final : Options {
  std::string input, queries, book, select;
  bool check = false;
  CommonOptions common;
  OutputOptions output;
  LayerSelection layers;
  DocumentSelection documents;

  std::vector<OptionField> fields() override {
    return {{.name = "book",
             .help = "file of the book the codes were made with; not needed if it is inside",
             .target = &book},
            {.name = "check",
             .help = "also decode the codes, attend to what was decoded, and compare outputs and times",
             .target = &check},
            {.name = "select",
             .help = "selection file: each query attends only to the tokens that the file names for it, and "
                     "no others are decoded",
             .target = &select}};
  }
};

/// The queries of one document that see tokens of its codes.
struct Asked {
  Match match;
  std::vector<uint64_t> places;     ///< among the queries of the kv file
  std::vector<uint64_t> rows;       ///< of their tokens in the kv file
  std::vector<uint64_t> positions;  ///< of their tokens in the document
  std::vector<uint64_t> visible;    ///< how many of the document's coded tokens each sees
};

struct LayerResult {
  int layer = 0;
  double seconds = 0, check_seconds = 0;
  double largest_difference = 0;  ///< of an output vector to that of decoding first, relative
};

struct Result {
  uint64_t documents = 0, tokens = 0, queries = 0;
  std::vector<LayerResult> layers;
  ReconstructionMeter errors;  ///< against attention over the original keys and values

  LayerResult total() const {
    LayerResult sum;
    for (const LayerResult& layer : layers) {
      sum.seconds += layer.seconds;
      sum.check_seconds += layer.check_seconds;
      sum.largest_difference = std::max(sum.largest_difference, layer.largest_difference);
    }
    return sum;
  }
};

// What fits together --------------------------------------------------------------------------------

/// The queries that look at the matched documents, document by document; documents without any are left out.
std::vector<Asked> find_queries(const KvReader& kv, const CodesReader& codes,
                                const std::vector<Match>& matches) {
  const Documents& documents = kv.documents();
  const auto rows = kv.query_token_rows(0, kv.query_tokens());
  std::vector<std::vector<uint64_t>> places(documents.count());
  for (uint64_t i = 0; i < rows.size(); ++i) {
    const auto next = std::upper_bound(documents.offsets.begin(), documents.offsets.end(), rows[i]);
    places[static_cast<size_t>(next - documents.offsets.begin()) - 1].push_back(i);
  }
  std::vector<Asked> asked;
  for (const Match& match : matches) {
    Asked one;
    one.match = match;
    const uint64_t begin = documents.offsets[match.original_document];
    const auto positions = kv.positions(begin, documents.length(match.original_document));
    const auto coded = codes.positions(match.other, match.count);
    for (const uint64_t place : places[match.original_document]) {
      const uint64_t position = positions[rows[place] - begin];
      const auto visible =
          static_cast<uint64_t>(std::upper_bound(coded.begin(), coded.end(), position) - coded.begin());
      if (visible == 0) continue;
      one.places.push_back(place);
      one.rows.push_back(rows[place]);
      one.positions.push_back(position);
      one.visible.push_back(visible);
    }
    if (!one.places.empty()) asked.push_back(std::move(one));
  }
  if (asked.empty())
    throw bad_input(
        "{}: none of its queries belongs to a chosen document of {} and comes after a coded token", kv.name(),
        codes.name());
  return asked;
}

/// What a selection file names for the queries of a kv file.
class Selected {
 public:
  Selected(const std::string& name, const KvReader& kv) : name_(name), file_(read_selection_info(name)) {
    check_same_model(name, file_.info.model, kv.name(), kv.model());
    const auto heads = static_cast<size_t>(kv.model().num_kv_heads);
    const auto q_heads = static_cast<size_t>(kv.model().num_q_heads);
    if (file_.info.heads != heads && file_.info.heads != q_heads)
      throw bad_input("{}: selections for {} heads; the model has {} key/value and {} query heads", name,
                      file_.info.heads, heads, q_heads);
    for (size_t i = 0; i < file_.info.query_rows.size(); ++i) places_[file_.info.query_rows[i]] = i;
  }

  size_t heads() const { return file_.info.heads; }
  const std::vector<std::string>& history() const { return file_.type.history; }

  /// Throws Error(bad_input) unless there are selections of these layers for all queries.
  void check(const std::vector<int>& layers, const std::vector<Asked>& asked) const {
    for (const int layer : layers)
      if (!file_.budgets.contains(layer)) throw bad_input("{}: selects nothing in layer {}", name_, layer);
    for (const Asked& one : asked)
      for (const uint64_t row : one.rows)
        if (!places_.contains(row))
          throw bad_input(
              "{}: selects nothing for the query in row {} of the kv file; --documents leaves out "
              "documents",
              name_, row);
  }

  /// Tokens for the queries in these rows, rising: (rows, layers * heads()), empty for layers that are not
  /// wanted. Row i sees visible[i] tokens.
  std::vector<std::vector<uint32_t>> tokens(const GroupShape& group, const std::vector<int>& wanted,
                                            std::span<const uint64_t> rows,
                                            std::span<const uint64_t> visible) {
    const auto layers = static_cast<size_t>(group.layers);
    std::vector<std::vector<uint32_t>> all(rows.size() * layers * heads());
    for (size_t l = 0; l < layers; ++l) {
      const int layer = group.first_layer + static_cast<int>(l);
      if (std::find(wanted.begin(), wanted.end(), layer) == wanted.end()) continue;
      const LayerSelections& selections = of_layer(layer);
      for (size_t i = 0; i < rows.size(); ++i)
        for (size_t head = 0; head < heads(); ++head) {
          auto& own = all[(i * layers + l) * heads() + head];
          own = ids_in_order(selections.chosen[places_.at(rows[i]) * heads() + head]);
          if (std::adjacent_find(own.begin(), own.end()) != own.end())
            throw bad_input("{}: layer {} selects a token twice for the query in row {}", name_, layer,
                            rows[i]);
          if (!own.empty() && own.back() >= visible[i])
            throw bad_input("{}: layer {} selects token {} for the query in row {}, which sees {}", name_,
                            layer, own.back(), rows[i], counted(visible[i], "token"));
        }
    }
    return all;
  }

 private:
  const LayerSelections& of_layer(int layer) {
    if (layers_.find(layer) == layers_.end()) {
      if (!layers_.empty() && layers_.begin()->first < layer) layers_.erase(layers_.begin());
      layers_.emplace(layer, read_selections(name_, layer));
    }
    return layers_.at(layer);
  }

  std::string name_;
  SelectionFile file_;
  std::map<uint64_t, size_t> places_;      // of queries, by their row
  std::map<int, LayerSelections> layers_;  // read so far
};

// Attention -----------------------------------------------------------------------------------------

/// A source whose errors name the file and the dataset.
class NamedSource final : public AttentionSource {
 public:
  NamedSource(const AttentionSource& source, std::string file, int group)
      : source_(source), file_(std::move(file)), group_(group) {}
  void multiply_keys(uint64_t first, MatrixView<const float> queries, MatrixView<float> out) const override {
    at_dataset(file_, Side::key, group_, [&] { source_.multiply_keys(first, queries, out); });
  }
  void multiply_values(uint64_t first, MatrixView<const float> weights,
                       MatrixView<float> out) const override {
    at_dataset(file_, Side::value, group_, [&] { source_.multiply_values(first, weights, out); });
  }

 private:
  const AttentionSource& source_;
  std::string file_;
  int group_;
};

/// The cache that is attended to, and the means that attend may use.
struct AttendPlan {
  const CodesReader& codes;
  const Codec& codec;
  const KvReader& kv;
  const std::vector<Asked>& asked;
  std::vector<int> layers;
  ProgressBar& bar;
  bool check = false;
  bool multiplies = false;  ///< whether the codec can, without decoding
  Selected* selected = nullptr;
  Engine* engine = nullptr;
  uint64_t room = 0;  ///< bytes for what is decoded at once
  OutputsWriter* writer = nullptr;
};

class Attender {
 public:
  explicit Attender(AttendPlan plan)
      : plan_(std::move(plan)),
        result_{.layers = {},
                .errors = ReconstructionMeter(static_cast<int>(plan_.layers.size()),
                                              plan_.kv.model().num_q_heads, plan_.kv.model().head_dim)} {
    for (const Asked& one : plan_.asked) {
      ++result_.documents;
      result_.tokens += one.match.count;
      result_.queries += one.places.size();
    }
    for (const int layer : plan_.layers) result_.layers.push_back({.layer = layer});
  }

  Result run() {
    const auto groups = groups_of(plan_.layers, plan_.codes.info().layer_group);
    planned_ = result_.queries * groups.size();
    for (const int group : groups)
      for (const Asked& one : plan_.asked) attend(group, one);
    return std::move(result_);
  }

 private:
  struct Timed {
    Matrix<float> rows;
    double seconds = 0;
  };

  void attend(int group, const Asked& one) {
    const GroupShape shape =
        group_shape(plan_.codes.info().model, group, plan_.codes.info().layer_group, Side::key);
    const StoredSides stored(plan_.codes, plan_.codec, shape, one.match.other_document);
    const DocumentView &keys = stored.keys(), &values = stored.values();
    const CodesSource straight(keys, values, CodesSource::Products::straight);
    const CodesSource decoded(keys, values, CodesSource::Products::decoded_first);
    const RowsSource original(shape, [&](Side side, uint64_t first, MatrixView<float> rows) {
      for_chosen(shape, shape.heads, [&](size_t, int layer, size_t column, size_t width) {
        plan_.kv.read(side, layer, one.match.original + first, rows.columns(column, width));
      });
    });
    const size_t most = attention_batch(shape, q_heads());
    const size_t batch = plan_.selected ? std::min(most, kChosenBatch) : most;
    for (size_t first = 0; first < one.places.size(); first += batch) {
      const size_t count = std::min(batch, one.places.size() - first);
      const Matrix<float> rows = read_queries(shape, std::span(one.places).subspan(first, count));
      const CausalQueries queries{q_heads(), rows, std::span(one.visible).subspan(first, count)};
      if (plan_.selected) {
        const auto tokens = plan_.selected->tokens(
            shape, plan_.layers, std::span(one.rows).subspan(first, count), queries.visible);
        const auto output = timed(queries, [&](MatrixView<float> out) {
          at_dataset(plan_.codes.name(), Side::key, group, [&] {
            attend_chosen(keys, values, {q_heads(), rows, plan_.selected->heads(), tokens}, out,
                          plan_.engine ? plan_.engine->make<AttentionEngine>() : nullptr);
          });
        });
        note(shape, output, {}, timed(shape, original, queries));
      } else {
        answer(shape, queries, NamedSource(straight, plan_.codes.name(), group),
               NamedSource(decoded, plan_.codes.name(), group), original, [&](MatrixView<float> out) {
                 return attends_on_device(shape, queries) &&
                        at_dataset(plan_.codes.name(), Side::key, group, [&] {
                          return attend_decoded(*plan_.engine->make<AttentionEngine>(), keys, values, queries,
                                                out);
                        });
               });
      }
      done_ += count;
      plan_.bar.update(static_cast<double>(done_), static_cast<double>(planned_));
    }
  }

  /// Whether a device attends to what was decoded: where the codec cannot multiply, and memory holds all that
  /// the queries see.
  bool attends_on_device(const GroupShape& shape, const CausalQueries& queries) const {
    if (!plan_.engine || plan_.multiplies) return false;
    const uint64_t tokens = std::ranges::max(queries.visible);
    const bool fits = checked_mul(tokens, 2 * shape.width() * sizeof(float)) <= plan_.room;
    if (!fits)
      plan_.engine->fall_back(
          fmt::format("attention over {}, which --memory does not hold", counted(tokens, "token")));
    return fits && plan_.engine->make<AttentionEngine>();
  }

  /// Asks one batch of queries everywhere, and notes what comes of it. on_device(out): whether a device did
  /// it.
  template <class Device>
  void answer(const GroupShape& shape, const CausalQueries& queries, const AttentionSource& straight,
              const AttentionSource& decoded, const AttentionSource& original, const Device& on_device) {
    Timed output, check;
    // Whoever comes second finds in the caches what it reads: the two take turns.
    const bool check_first = plan_.check && turn_++ % 2 == 1;
    if (check_first) check = timed(shape, decoded, queries);
    output = timed(queries, [&](MatrixView<float> out) {
      if (!on_device(out)) attend_causally(shape, straight, queries, out);
    });
    if (plan_.check && !check_first) check = timed(shape, decoded, queries);
    note(shape, output, check, timed(shape, original, queries));
  }

  /// Notes what came of a batch. check: empty where there was none.
  void note(const GroupShape& shape, const Timed& output, const Timed& check, const Timed& truth) {
    for_chosen(shape, q_heads(), [&](size_t index, int layer, size_t column, size_t width) {
      LayerResult& result = result_.layers[index];
      const MatrixView<const float> out = output.rows.view().columns(column, width);
      at_dataset(plan_.codes.name(), Side::value, shape.first_layer, [&] {
        result_.errors.add(static_cast<int>(index), truth.rows.view().columns(column, width), out);
      });
      // What is coded together is multiplied together: each layer of a group gets an equal share.
      result.seconds += output.seconds / shape.layers;
      if (plan_.check) {
        result.check_seconds += check.seconds / shape.layers;
        result.largest_difference = std::max(
            result.largest_difference, largest_relative_error(out, check.rows.view().columns(column, width),
                                                              static_cast<size_t>(shape.head_dim)));
      }
      if (plan_.writer) plan_.writer->append(layer, out);
    });
  }

  static Timed timed(const GroupShape& shape, const AttentionSource& source, const CausalQueries& queries) {
    return timed(queries, [&](MatrixView<float> out) { attend_causally(shape, source, queries, out); });
  }

  template <class Body>
  static Timed timed(const CausalQueries& queries, const Body& body) {
    Timed result{Matrix<float>(queries.rows.rows(), queries.rows.cols()), 0};
    const Stopwatch watch;
    body(result.rows.view());
    result.seconds = watch.seconds();
    return result;
  }

  /// Queries of the chosen layers of a group, [layers][heads][head_dim] each; zeros for the other layers.
  Matrix<float> read_queries(const GroupShape& shape, std::span<const uint64_t> places) const {
    Matrix<float> rows(places.size(), static_cast<size_t>(shape.layers * q_heads() * shape.head_dim));
    for_chosen(shape, q_heads(), [&](size_t, int layer, size_t column, size_t width) {
      const auto out = rows.view().columns(column, width);
      for (size_t i = 0; i < places.size();) {  // runs that lie one behind the other in the file
        size_t run = 1;
        while (i + run < places.size() && places[i + run] == places[i] + run) ++run;
        plan_.kv.read_queries(layer, places[i], out.rows(i, run));
        i += run;
      }
    });
    return rows;
  }

  /// Calls body(index among the chosen layers, layer, first column, columns) for the chosen layers of a group
  /// whose rows hold so many heads per layer.
  template <class Body>
  void for_chosen(const GroupShape& shape, int heads, const Body& body) const {
    const auto width = static_cast<size_t>(heads) * static_cast<size_t>(shape.head_dim);
    for (size_t index = 0; index < plan_.layers.size(); ++index)
      if (const int place = plan_.layers[index] - shape.first_layer; place >= 0 && place < shape.layers)
        body(index, plan_.layers[index], static_cast<size_t>(place) * width, width);
  }

  int q_heads() const { return plan_.kv.model().num_q_heads; }

  AttendPlan plan_;
  Result result_;
  size_t turn_ = 0;
  uint64_t done_ = 0, planned_ = 0;  // queries, of all groups
};

/// Throws Error(usage) if the buffers, which are the same for any --memory, do not fit it.
void check_memory(const CodesReader& codes, const Codec& codec, const CommonOptions& common) {
  const ModelInfo& model = codes.info().model;
  uint64_t needed = 0;
  for (const Side side : kSides) {
    const GroupShape shape = group_shape(model, 0, codes.info().layer_group, side);
    const size_t scratch = codec.scratch_bytes_per_row(codec.joint() ? of_side(shape, Side::both) : shape);
    needed = std::max(needed, attention_bytes(shape, model.num_q_heads, scratch));
  }
  needed += 4 * codes.info().book_bytes;  // as chunk_budget says
  if (needed > common.memory_bytes())
    throw usage_error(
        "buffers may take {}; attention over groups of {} with {} each needs {}: give more --memory",
        size_text(common.memory_bytes()), counted(static_cast<uint64_t>(codes.info().layer_group), "layer"),
        counted(static_cast<uint64_t>(model.num_q_heads), "query head"), size_text(needed));
}

// The report ----------------------------------------------------------------------------------------

std::string milliseconds(double seconds) { return significant(1000 * seconds, 3); }

/// How far that is from decoding first.
Measures check_measures(const LayerResult& layer) {
  return grouped_as(
      "decoding first",
      {rounded("largest_relative_difference", {"differs", "at most"}, layer.largest_difference, 2),
       {"seconds", layer.check_seconds, {"time", "ms"}, milliseconds(layer.check_seconds)},
       rounded("time_ratio", {"time", "ratio"}, layer.check_seconds / layer.seconds, 3)});
}

Measures measures_of(const Result& result, const LayerResult& layer, std::optional<int> index) {
  const ErrorSums errors = result.errors.errors(index);
  const CosineSummary cosine = result.errors.cosine(index);
  return joined(
      {number_of(nullptr, {"queries"}, result.queries),
       number_of(nullptr, {"tokens"}, result.tokens),
       {"seconds", layer.seconds, {"time", "ms"}, milliseconds(layer.seconds)}},
      grouped_as("error of outputs",
                 {rounded("relative_error", {"relative"}, std::sqrt(errors.nmse()), 3),
                  {"max_error", errors.max_error},
                  decimal("cosine_mean", {"cosine", "mean"}, cosine.mean, 4),
                  decimal("cosine_first_percentile", {"cosine", "1st pct"}, cosine.first_percentile, 4)}));
}

const char* how_multiplied(const CodecOfFile& codec) {
  if (codec.multiplies()) return "multiplied without decoding";
  if (codec.multiplies(Side::key)) return "keys multiplied without decoding, values decoded";
  if (codec.multiplies(Side::value)) return "keys decoded, values multiplied without decoding";
  return "decoded to be multiplied";
}

std::string report(const CodesReader& codes, const CodecOfFile& codec, const KvReader& kv,
                   const Result& result, bool check, bool selected) {
  const ModelInfo& model = codes.info().model;
  std::string out = fmt::format(
      "{} ({}, {}) asked by {}: {}, {} on {} x {}, {}\n\n", codes.name(), codec.entry().name,
      selected ? "selected tokens decoded" : how_multiplied(codec), kv.name(),
      counted(result.layers.size(), "layer"), counted(static_cast<uint64_t>(model.num_q_heads), "query head"),
      counted(static_cast<uint64_t>(model.num_kv_heads), "key/value head"), model.head_dim,
      counted(result.documents, "document"));
  MeasureTable table("layer");
  const auto row = [&](const std::string& label, const LayerResult& layer, std::optional<int> index) {
    const Measures measures = measures_of(result, layer, index);
    table.row(label, check ? joined(measures, check_measures(layer)) : measures);
  };
  for (size_t i = 0; i < result.layers.size(); ++i)
    row(fmt::format("{}", result.layers[i].layer), result.layers[i], static_cast<int>(i));
  table.rule();
  row("all", result.total(), {});
  return out + table.text();
}

std::string json_report(const CodesReader& codes, const CodecOfFile& codec, const KvReader& kv,
                        const Result& result, const AttendOptions& options) {
  Json json = {{"codes", codes.name()},
               {"queries_from", kv.name()},
               {"output", options.output.path.empty() ? Json(nullptr) : Json(options.output.path)},
               {"codec", codec.entry().name},
               {"multiplies", codec.multiplies()},
               {"selection", options.select.empty() ? Json(nullptr) : Json(options.select)},
               {"documents", result.documents},
               {"tokens", result.tokens},
               {"queries", result.queries}};
  const auto measured = [&](Json to, const LayerResult& layer, std::optional<int> index) {
    to.update(json_of(measures_of(result, layer, index)));
    if (options.check) to["check"] = json_of(check_measures(layer));
    return to;
  };
  json["total"] = measured(Json::object(), result.total(), {});
  json["layers"] = Json::array();
  for (size_t i = 0; i < result.layers.size(); ++i)
    json["layers"].push_back(
        measured({{"layer", result.layers[i].layer}}, result.layers[i], static_cast<int>(i)));
  return text_of(json);
}

OutputsInfo outputs_info(const KvReader& kv, const std::string& codec, const std::vector<int>& layers,
                         const std::vector<Asked>& asked) {
  OutputsInfo info{.model = kv.model(), .codec = codec, .layers = layers, .documents = {}};
  for (const Asked& one : asked)
    info.documents.add(kv.documents().names[one.match.original_document], one.places.size());
  return info;
}

/// That member of all documents, one behind the other.
std::vector<uint64_t> joined(const std::vector<Asked>& asked, std::vector<uint64_t> Asked::*member) {
  std::vector<uint64_t> all;
  for (const Asked& one : asked) all.insert(all.end(), (one.*member).begin(), (one.*member).end());
  return all;
}

void declare(Command& command, AttendOptions& options) {
  command.describe(
      "CODES --queries KV [options] [-o OUT]",
      "Attention straight from codes: the queries that a kv file holds attend, causally, to the keys and "
      "values "
      "that a codes file holds, softmax(q k / sqrt(d)) v for every query head. Codecs that can multiply "
      "without decoding (kvcomp, sparse) do; for the others, blocks of tokens are decoded and multiplied. With -o "
      "the outputs are kept, as a file of type outputs.\n\n"
      "The table says, for each layer, how long it took and how far the outputs are from those of the "
      "original keys and values in the kv file: what the codec does to the model, not only to the cache. "
      "With --check, also how far they are from decoding first and multiplying then, which is rounding, and "
      "how much longer that takes. With --select each query attends only to the tokens that kvcodec select "
      "chose for it, and no others are decoded; the error is still against attention over all.",
      "kvcodec dump-kv --model data/demo-model --text docs/ --chunk 1024 --queries last:64 -o kv.h5\n"
      "kvcodec encode kv.h5 --codec kvcomp -o codes.h5\n"
      "kvcodec attend codes.h5 --queries kv.h5 --check -o outputs.h5");
  command.group("Input and output");
  command.input("CODES", "codes file; - is standard input", options.input);
  command.option({.name = "queries",
                  .help = "kv file with queries, and the original keys and values, of the coded documents; - "
                          "is standard input",
                  .target = &options.queries},
                 "KV");
  options.output.declare(command, "file for the outputs; none if not given");
  options.layers.declare(command);
  options.documents.declare(command);
  command.group("Attention");
  command.options(options, {{"book", "FILE"}, {"select", "SELECTION"}});
  options.common.declare(command);
}

void check_combination(const Command& command, const AttendOptions& options) {
  if (options.queries.empty())
    throw usage_error("no queries are named; say which kv file holds some with --queries KV");
  options.output.check_if_given(command, options.common);
  if (options.check && !options.select.empty())
    throw usage_error("--check compares attention over all tokens; leave it out with --select");
  const std::vector<std::string> read{options.input, options.queries, options.book, options.select};
  check_inputs(read);
  options.output.keep(read);
}

std::string attend(Command& command) {
  AttendOptions options;
  declare(command, options);
  command.parse();
  check_combination(command, options);
  options.common.apply(command, true);

  expect_inputs({options.input, options.queries}, options.book);
  const CodesReader codes(options.input);
  const KvReader kv(options.queries);
  const auto layers = options.layers.choose(stored_layers(codes.info()), codes.name());
  check_one_shape(codes.name(), codes.info().model, codes.info().documents, "attend");
  check_one_shape(kv.name(), kv.model(), kv.documents(), "attend");
  check_queries(kv, codes, layers);
  const auto documents = options.documents.choose(codes.info().documents, codes.name());
  const auto asked = find_queries(kv, codes, match_documents(token_axis(kv), token_axis(codes), documents));
  const CodecOfFile codec(codes, options.book, options.common.engine());
  check_memory(codes, codec.codec(), options.common);
  std::optional<Selected> selected;
  if (!options.select.empty()) selected.emplace(options.select, kv).check(layers, asked);

  const auto run = [&](OutputFile* output) {
    std::optional<OutputsWriter> writer;
    if (output)
      writer.emplace(*output, outputs_info(kv, codec.entry().name, layers, asked),
                     joined(asked, &Asked::positions), joined(asked, &Asked::rows));
    ProgressBar bar("attend", "queries", options.common.quiet);
    Engine* const engine = options.common.engine();
    Result result = Attender({.codes = codes,
                              .codec = codec.codec(),
                              .kv = kv,
                              .asked = asked,
                              .layers = layers,
                              .bar = bar,
                              .check = options.check,
                              .multiplies = codec.multiplies(),
                              .selected = selected ? &*selected : nullptr,
                              .engine = engine,
                              .room = options.common.memory_bytes() / 2,
                              .writer = writer ? &*writer : nullptr})
                        .run();
    if (!writer) return result;
    options.common.record_device(command);
    writer->finish(
        command.provenance(merged_history({kv.type().history, codes.type().history, codec.book_history(),
                                           selected ? selected->history() : std::vector<std::string>{}})));
    return result;
  };
  return run_perhaps_to_file(options.output, run, [&](const Result& result) {
    return options.common.json ? json_report(codes, codec, kv, result, options)
                               : report(codes, codec, kv, result, options.check, selected.has_value());
  });
}

}  // namespace

CommandEntry attend_command() {
  return {CommandGroup::attend, 1, "attend",
          "attend to keys and values straight from codes, and measure what changes", attend};
}

}  // namespace kvcodec::cli
