#include "lib/pipeline/attend.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "cli/codecs/coding.hpp"
#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"
#include "cli/inputs/held_tokens.hpp"
#include "lib/core/checked.hpp"
#include "lib/engine/engine.hpp"
#include "lib/metrics/reconstruction.hpp"
#include "lib/pipeline/selection.hpp"

namespace kvcodec::cli {
namespace {

struct AttendOptions final : CommandOptions {
  std::string input, queries, book, select;
  bool check = false;

  std::vector<OptionField> fields() override {
    return {
        {"book", "file of the book the codes were made with; not needed if it is inside", &book},
        {"check", "also decode the codes, attend to what was decoded, and compare outputs and times", &check},
        {"select",
         "selection file: each query attends only to the tokens that the file names for it, and no others "
         "are decoded",
         &select}};
  }
};

/// Queries of one document that see tokens of its codes.
struct Asked {
  Match match;
  std::vector<uint64_t> places;     ///< among the queries of the kv file
  std::vector<uint64_t> rows;       ///< of their tokens in the kv file
  std::vector<uint64_t> positions;  ///< of their tokens in the document
  std::vector<uint64_t> visible;    ///< how many of the document's coded tokens each sees, without windows
  std::vector<uint64_t> coded;      ///< positions of these tokens
};

struct LayerResult {
  int layer = 0;
  SelectionCount selected = {};  ///< with --select
  double seconds = 0, check_seconds = 0;
  double largest_difference = 0;  ///< relative, of an output vector from that of decoding first
};

struct Result {
  uint64_t documents = 0, tokens = 0, queries = 0;
  std::vector<LayerResult> layers;
  ReconstructionMeter errors;  ///< against attention over the original keys and values

  LayerResult total() const {
    LayerResult sum;
    for (const LayerResult& layer : layers) {
      sum.selected.add(layer.selected);
      sum.seconds += layer.seconds;
      sum.check_seconds += layer.check_seconds;
      sum.largest_difference = std::max(sum.largest_difference, layer.largest_difference);
    }
    return sum;
  }
};

/// Finds the queries that see tokens of the matched documents; documents without any are left out.
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
    one.coded = codes.positions(match.other, match.count);
    for (const uint64_t place : places[match.original_document]) {
      const uint64_t position = positions[rows[place] - begin];
      const auto visible =
          static_cast<uint64_t>(std::ranges::upper_bound(one.coded, position) - one.coded.begin());
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

/// The tokens that a selection file names for the queries of a kv file.
class Selected {
 public:
  Selected(const std::string& name, const KvReader& kv) : name_(name), file_(read_selection_info(name)) {
    check_same_model(name, file_.info.model, kv.name(), kv.model());
    const auto heads = as_size(kv.model().num_kv_heads);
    const auto q_heads = as_size(kv.model().num_q_heads);
    if (file_.info.heads != heads && file_.info.heads != q_heads)
      throw bad_input("{}: selections for {} heads; the model has {} key/value and {} query heads", name,
                      file_.info.heads, heads, q_heads);
    for (size_t i = 0; i < file_.info.query_rows.size(); ++i) places_[file_.info.query_rows[i]] = i;
  }

  size_t heads() const { return file_.info.heads; }
  /// Counts the tokens of the query in that row of the kv file, of all heads.
  SelectionCount count(uint64_t row, std::span<const std::vector<uint32_t>> chosen) const {
    const std::vector<uint32_t>& beside = file_.info.beside;
    SelectionCount count;
    for (const std::vector<uint32_t>& own : chosen) {
      const uint64_t apart = beside.empty() ? 0 : std::min<uint64_t>(beside[places_.at(row)], own.size());
      count.add({.selections = 1, .tokens = own.size() - apart, .beside = apart});
    }
    return count;
  }
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

  /// Tokens for the queries in these rows, ascending: (rows, layers * heads()), empty for layers that are not wanted. queries: these.
  /// They and the result count from token `held`, the first that the layers hold.
  std::vector<std::vector<uint32_t>> tokens(const GroupShape& group, const std::vector<int>& wanted,
                                            std::span<const uint64_t> rows, const CausalQueries& queries,
                                            uint64_t held) {
    const auto layers = group.layers.size();
    std::vector<std::vector<uint32_t>> all(rows.size() * layers * heads());
    for (size_t l = 0; l < layers; ++l) {
      const int layer = group.layers[l];
      if (std::find(wanted.begin(), wanted.end(), layer) == wanted.end()) continue;
      const LayerSelections& selections = of_layer(layer);
      for (size_t i = 0; i < rows.size(); ++i)
        for (size_t head = 0; head < heads(); ++head) {
          auto& own = all[(i * layers + l) * heads() + head];
          own = ids_in_order(selections.chosen[places_.at(rows[i]) * heads() + head]);
          if (std::adjacent_find(own.begin(), own.end()) != own.end())
            throw bad_input("{}: layer {} selects a token twice for the query in row {}", name_, layer,
                            rows[i]);
          const uint64_t from = held + queries.from_of(l, i), end = held + queries.visible[i];
          if (!own.empty() && (own.front() < from || own.back() >= end))
            throw bad_input(
                "{}: layer {} selects token {} for the query in row {}, which sees {}", name_, layer,
                own.front() < from ? own.front() : own.back(), rows[i],
                from == 0 ? counted(end, "token") : fmt::format("tokens {} to {} there", from, end - 1));
          for (uint32_t& id : own) id -= static_cast<uint32_t>(held);
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

/// A source whose errors name the file and the dataset. `source` and `file` outlive it.
AttentionSource named(const AttentionSource& source, const std::string& file, int group) {
  return {[&, group](Side side, uint64_t first, MatrixView<const float> factors, MatrixView<float> out) {
    at_dataset(file, side, group, [&] { source.multiply(side, first, factors, out); });
  }};
}

/// The cache that is attended to, the settings of attend, and the results.
struct Attention {
  const CodesReader& codes;
  const CodecOfFile& codec;
  const KvReader& kv;
  const ScoreForms& forms;
  bool check = false;
  Selected* selected = nullptr;
  Engine* engine = nullptr;
  uint64_t room = 0;  ///< bytes for what is decoded at once
  OutputsWriter* writer = nullptr;
  Result result;
  size_t turn = 0;
  uint64_t done = 0;  ///< queries, of all groups

  int q_heads() const { return kv.model().num_q_heads; }
  size_t value_dim(int layer) const { return as_size(kv.model().layer_shape(layer).value_dim); }
};

struct Timed {
  Matrix<float> rows;
  double seconds = 0;
};

template <class Body>
Timed timed(const CausalQueries& queries, size_t width, const Body& body) {
  Timed result{Matrix<float>(queries.rows.rows(), width), 0};
  const Stopwatch watch;
  body(result.rows.view());
  result.seconds = watch.seconds();
  return result;
}

Timed timed(const GroupShape& shape, const AttentionSource& source, const CausalQueries& queries,
            size_t width) {
  return timed(queries, width, [&](MatrixView<float> out) { attend_causally(shape, source, queries, out); });
}

/// Calls body(index among the chosen layers, layer, first column, columns) for the chosen layers of a group whose rows hold `width`
/// values per layer.
template <class Body>
void for_chosen(const Result& result, const GroupShape& shape, size_t width, const Body& body) {
  for (size_t index = 0; index < result.layers.size(); ++index) {
    const int layer = result.layers[index].layer;
    if (const size_t place = shape.place_of(layer); place < shape.layers.size())
      body(index, layer, place * width, width);
  }
}

/// Queries of the chosen layers of a group, [layers][heads][head_dim] each; zeros for the other layers.
Matrix<float> read_queries(const Attention& attention, const GroupShape& shape,
                           std::span<const uint64_t> places) {
  const size_t of_layer = as_size(attention.q_heads()) * shape.dims();
  Matrix<float> rows(places.size(), shape.layers.size() * of_layer);
  for_chosen(attention.result, shape, of_layer, [&](size_t, int layer, size_t column, size_t width) {
    const auto out = rows.view().columns(column, width);
    for (size_t i = 0; i < places.size();) {  // runs that are adjacent in the file
      size_t run = 1;
      while (i + run < places.size() && places[i + run] == places[i] + run) ++run;
      attention.kv.read_queries(layer, places[i], out.rows(i, run));
      i += run;
    }
  });
  return rows;
}

/// True if a device attends to decoded rows: if the codec cannot multiply, and memory can hold everything that the queries see.
bool attends_on_device(const Attention& attention, const GroupShape& shape, const CausalQueries& queries) {
  if (!attention.engine || attention.codec.multiplies()) return false;
  const uint64_t tokens = std::ranges::max(queries.visible);
  const bool fits = checked_mul(tokens, 2 * shape.width() * sizeof(float)) <= attention.room;
  if (!fits)
    attention.engine->fall_back(
        fmt::format("attention over {}, which --memory does not hold", counted(tokens, "token")));
  return fits && attention.engine->make<AttentionOnDevice>();
}

/// Records the outputs of a batch. check: empty if there was none.
void record(Attention& attention, const GroupShape& shape, const Timed& output, const Timed& check,
            const Timed& truth) {
  for_chosen(
      attention.result, shape, as_size(attention.q_heads()) * attention.value_dim(shape.first_layer()),
      [&](size_t index, int layer, size_t column, size_t width) {
        LayerResult& result = attention.result.layers[index];
        const MatrixView<const float> out = output.rows.view().columns(column, width);
        at_dataset(attention.codes.name(), Side::value, shape.first_layer(), [&] {
          attention.result.errors.add(static_cast<int>(index), truth.rows.view().columns(column, width), out);
        });
        // Layers that are coded together are multiplied together: each layer of a group gets an equal share.
        result.seconds += output.seconds / static_cast<double>(shape.layers.size());
        if (attention.check) {
          result.check_seconds += check.seconds / static_cast<double>(shape.layers.size());
          result.largest_difference = std::max(
              result.largest_difference, largest_relative_error(out, check.rows.view().columns(column, width),
                                                                attention.value_dim(layer)));
        }
        if (attention.writer) attention.writer->append(layer, out);
      });
}

/// Attends to a document in one group of layers. show() is called after each batch.
template <class Show>
void attend_document(Attention& attention, int group, const Asked& one, const Show& show) {
  const CodesInfo& info = attention.codes.info();
  const std::string& name = attention.codes.name();
  const GroupShape shape = info.shape(group, Side::key);
  const StoredSides stored(attention.codes, attention.codec.codec(), shape, one.match.other_document);
  // Tokens count from the first that the group's layers hold.
  const HeldTokens held(attention.kv, attention.codes, one.match);
  const uint64_t held_from = held.first(shape.first_layer());
  const DocumentView &keys = stored.keys(), &values = stored.values();
  const auto straight = AttentionSource::of_codes(keys, values);
  const auto decoded = AttentionSource::of_decoded(keys, values);
  const auto original = AttentionSource::of_rows(
      shape,
      [&](Side side, uint64_t first, MatrixView<float> rows) {
        for_chosen(attention.result, shape, rows.cols() / shape.layers.size(),
                   [&](size_t, int layer, size_t column, size_t width) {
                     held.read(side, layer, held_from + first, rows.columns(column, width));
                   });
      },
      values.shape().head_dim());
  const auto layers = mapped<int>(attention.result.layers, &LayerResult::layer);
  const int heads = attention.q_heads();
  const std::vector<float> sinks = attention.forms.sinks_of(shape.layers);
  const ScoreForm form{attention.forms.cap, sinks};
  const size_t outputs = shape.layers.size() * as_size(heads) * attention.value_dim(shape.first_layer());
  const size_t limit = attention_batch(shape, heads);
  const size_t batch = attention.selected ? std::min(limit, kChosenBatch) : limit;
  for (size_t first = 0; first < one.places.size(); first += batch) {
    const size_t count = std::min(batch, one.places.size() - first);
    const Matrix<float> rows = read_queries(attention, shape, std::span(one.places).subspan(first, count));
    std::vector<uint64_t> from, visible;
    from.reserve(shape.layers.size() * count);
    visible.reserve(count);
    for (const int layer : shape.layers)
      for (size_t i = first; i < first + count; ++i) {
        const uint64_t seen = attention.forms.first_seen(layer, one.coded, one.positions[i]);
        if (std::ranges::count(layers, layer) > 0) held.check(layer, seen, one.visible[i], one.positions[i]);
        from.push_back(std::max(seen, held_from) - held_from);
      }
    for (size_t i = first; i < first + count; ++i) visible.push_back(one.visible[i] - held_from);
    const CausalQueries queries{heads, rows, visible, from, form};
    std::vector<std::vector<uint32_t>> tokens;
    if (attention.selected)
      tokens = attention.selected->tokens(shape, layers, std::span(one.rows).subspan(first, count), queries,
                                          held_from);
    const size_t selections = attention.selected ? attention.selected->heads() : 0;
    for (LayerResult& layer : attention.result.layers)
      if (const size_t place = shape.place_of(layer.layer); !tokens.empty() && place < shape.layers.size())
        for (size_t i = 0; i < count; ++i)
          layer.selected.add(attention.selected->count(
              one.rows[first + i],
              std::span(tokens).subspan((i * shape.layers.size() + place) * selections, selections)));
    const auto attend = [&](MatrixView<float> out) {
      at_dataset(name, Side::key, group, [&] {
        if (attention.selected)
          return attend_chosen(keys, values, {heads, rows, attention.selected->heads(), tokens, form}, out,
                               attention.engine ? attention.engine->make<AttentionOnDevice>() : nullptr);
        if (attends_on_device(attention, shape, queries) &&
            attend_decoded(attention.engine->make<AttentionOnDevice>(), keys, values, queries, out))
          return;
        attend_causally(shape, named(straight, name, group), queries, out);
      });
    };
    // The second of the two finds its data in the caches, so they take turns.
    const bool check_first = attention.turn++ % 2 == 1;
    Timed output, check;
    if (!check_first) output = timed(queries, outputs, attend);
    if (attention.check) check = timed(shape, named(decoded, name, group), queries, outputs);
    if (check_first) output = timed(queries, outputs, attend);
    record(attention, shape, output, check, timed(shape, original, queries, outputs));
    attention.done += count;
    show();
  }
}

std::string milliseconds(double seconds) { return significant(1000 * seconds, 3); }

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
  Measures asked = {number_of(nullptr, {"queries"}, result.queries),
                    number_of(nullptr, {"tokens"}, result.tokens)};
  if (const SelectionCount& of = layer.selected; of.selections > 0) {
    const auto selections = static_cast<double>(of.selections);
    asked.push_back(
        decimal("selected_tokens", {"selected", "of each"}, static_cast<double>(of.tokens) / selections, 1));
    asked.push_back(decimal("beside", {"and", "beside"}, static_cast<double>(of.beside) / selections, 1));
  }
  asked.push_back({"seconds", layer.seconds, {"time", "ms"}, milliseconds(layer.seconds)});
  return joined(
      asked,
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

std::string report(const Attention& attention, const AttendOptions& options) {
  const Result& result = attention.result;
  const CodesReader& codes = attention.codes;
  const CodecOfFile& codec = attention.codec;
  const ModelInfo& model = codes.info().model;
  Json json = {{"codes", codes.name()},
               {"queries_from", attention.kv.name()},
               {"output", options.output.path.empty() ? Json() : Json(options.output.path)},
               {"codec", codec.entry().name},
               {"multiplies", codec.multiplies()},
               {"selection", options.select.empty() ? Json() : Json(options.select)},
               {"documents", result.documents},
               {"tokens", result.tokens},
               {"queries", result.queries},
               {"total", Json::object()},
               {"layers", Json::array()}};
  MeasureTable table("layer");
  const auto add = [&](const std::string& label, Json& to, const LayerResult& layer,
                       std::optional<int> index) {
    const Measures measures = measures_of(result, layer, index);
    to.update(json_of(measures));
    if (options.check) to["check"] = json_of(check_measures(layer));
    table.row(label, options.check ? joined(measures, check_measures(layer)) : measures);
  };
  for (const LayerResult& layer : result.layers) {
    const auto index = static_cast<int>(json["layers"].size());
    add(fmt::format("{}", layer.layer), json["layers"].emplace_back(Json{{"layer", layer.layer}}), layer,
        index);
  }
  table.rule();
  add("all", json["total"], result.total(), {});
  if (options.common.json) return text_of(json);
  return fmt::format("{} ({}, {}) asked by {}: {}, {} on {} x {}, {}\n\n", codes.name(), codec.entry().name,
                     attention.selected ? "selected tokens decoded" : how_multiplied(codec),
                     attention.kv.name(), counted(result.layers.size(), "layer"),
                     counted(static_cast<uint64_t>(model.num_q_heads), "query head"),
                     counted(static_cast<uint64_t>(model.num_kv_heads), "key/value head"), model.head_dim,
                     counted(result.documents, "document")) +
         table.text();
}

/// That member of all documents, joined.
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
      "that a codes file holds, softmax(q k / sqrt(d)) v for every query head, with the windows, soft caps and "
      "sinks of the model, which dump-kv stores. Codecs that can multiply "
      "without decoding (kvcomp, sparse) do; for the others, blocks of tokens are decoded and multiplied. With -o "
      "the outputs are kept, as a file of type outputs.\n\n"
      "The table says, for each layer, how long it took and how far the outputs are from those of the "
      "original keys and values in the kv file: what the codec does to the model, not only to the cache. "
      "With --check, also how far they are from decoding first and multiplying then, which is rounding, and "
      "how much longer that takes. With --select each query attends only to the tokens that kvcodec select "
      "chose for it, and no others are decoded; the error is still against attention over all.",
      "kvcodec dump-kv --model DIR --text docs/ --chunk 1024 -o kv.h5\n"
      "kvcodec encode kv.h5 --codec kvcomp -o codes.h5\n"
      "kvcodec attend codes.h5 --queries kv.h5 --check -o outputs.h5");
  command.group("Input and output");
  command.input("CODES", "codes file; - is standard input", options.input);
  command.option(
      {"queries",
       "kv file with queries, and the original keys and values, of the coded documents; - is standard "
       "input",
       &options.queries},
      "KV");
  options.output.declare(command, "file for the outputs; none if not given");
  options.layers.declare(command);
  options.documents.declare(command);
  command.group("Attention");
  command.options(options, {{"book", "FILE"}, {"select", "SELECTION"}});
  options.common.declare(command);
}

/// The heads of the outputs of each layer.
std::vector<ReconstructionMeter::Heads> heads_of(const std::vector<int>& layers, const ModelInfo& model) {
  return mapped<ReconstructionMeter::Heads>(layers, [&](int layer) {
    return ReconstructionMeter::Heads{model.num_q_heads, model.layer_shape(layer).value_dim};
  });
}

std::string attend(Command& command) {
  AttendOptions options;
  declare(command, options);
  command.parse();
  if (options.queries.empty())
    throw usage_error("no queries are named; say which kv file holds some with --queries KV");
  options.output.check_if_given(command, options.common);
  if (options.check && !options.select.empty())
    throw usage_error("--check compares attention over all tokens; leave it out with --select");
  const std::vector<std::string> read{options.input, options.queries, options.book, options.select};
  check_inputs(read);
  options.output.keep(read);
  options.common.apply(command, true);

  const CodesReader codes(options.input);
  const KvReader kv(options.queries);
  const auto layers = options.layers.choose(stored_layers(codes.info()), codes.name());
  check_queries(kv, codes, layers);
  const auto documents = options.documents.choose(codes.info().documents, codes.name());
  const auto asked = find_queries(kv, codes, match_documents(kv, codes, documents));
  const CodecOfFile codec(codes, options.book, options.common.engine());
  // The buffers have fixed sizes: --memory can only refuse them.
  const ModelInfo& model = codes.info().model;
  uint64_t needed = 0;
  for (const int group : groups_of(layers, codes.info()))
    for (const Side side : kSides) {
      const GroupShape shape = of_side(codes.info().shape(group, Side::key), side);
      const size_t scratch =
          codec.codec().scratch_bytes_per_row(codec.codec().joint() ? of_side(shape, Side::both) : shape);
      needed = std::max(needed, attention_bytes(shape, model.num_q_heads, scratch));
    }
  needed += 4 * codes.info().book_bytes;  // as in chunk_budget
  if (needed > options.common.memory_bytes())
    throw usage_error(
        "buffers may take {}; attention over groups of {} with {} each needs {}: give more --memory",
        size_text(options.common.memory_bytes()),
        counted(static_cast<uint64_t>(codes.info().layer_group), "layer"),
        counted(static_cast<uint64_t>(model.num_q_heads), "query head"), size_text(needed));
  std::optional<Selected> selected;
  if (!options.select.empty()) selected.emplace(options.select, kv).check(layers, asked);

  const ScoreForms forms = forms_of_scores(kv, options.common);
  Attention attention{.codes = codes,
                      .codec = codec,
                      .kv = kv,
                      .forms = forms,
                      .check = options.check,
                      .selected = selected ? &*selected : nullptr,
                      .engine = options.common.engine(),
                      .room = options.common.memory_bytes() / 2,
                      .result = {.layers = {}, .errors = ReconstructionMeter(heads_of(layers, kv.model()))}};
  for (const Asked& one : asked) {
    ++attention.result.documents;
    attention.result.tokens += one.match.count;
    attention.result.queries += one.places.size();
  }
  for (const int layer : layers) attention.result.layers.push_back({.layer = layer});
  const auto run = [&](OutputFile* output) {
    std::optional<OutputsWriter> writer;
    if (output) {
      OutputsInfo info{.model = kv.model(), .codec = codec.entry().name, .layers = layers, .documents = {}};
      for (const Asked& one : asked)
        info.documents.add(kv.documents().names[one.match.original_document], one.places.size());
      attention.writer =
          &writer.emplace(*output, info, joined(asked, &Asked::positions), joined(asked, &Asked::rows));
    }
    ProgressBar bar("attend", "queries", options.common.quiet);
    const auto groups = groups_of(layers, codes.info());
    const auto total = static_cast<double>(attention.result.queries * groups.size());
    for (const int group : groups)
      for (const Asked& one : asked)
        attend_document(attention, group, one,
                        [&] { bar.update(static_cast<double>(attention.done), total); });
    if (!writer) return true;
    options.common.record_device(command);
    writer->finish(
        command.provenance(merged_history({kv.type().history, codes.type().history, codec.book_history(),
                                           selected ? selected->history() : std::vector<std::string>{}})));
    return true;
  };
  return run_perhaps_to_file(options.output, run, [&](bool) { return report(attention, options); });
}

}  // namespace

CommandEntry attend_command() {
  return {CommandGroup::attend, 1, "attend", "attend straight from codes, and measure what changes", attend};
}

}  // namespace kvcodec::cli
