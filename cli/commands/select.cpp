#include <algorithm>
#include <optional>

#include "cli/codecs/codec_spec.hpp"
#include "cli/codecs/coding.hpp"
#include "cli/codecs/rate.hpp"
#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"
#include "cli/inputs/held_tokens.hpp"
#include "lib/attention/selector.hpp"
#include "lib/codec/document_view.hpp"
#include "lib/core/checked.hpp"
#include "lib/engine/engine.hpp"

namespace kvcodec::cli {
namespace {

struct SelectOptions final : CommandOptions {
  std::string input, queries, book, index;
  int64_t prompt = 0;
  SelectionOptions selection;

  std::vector<OptionField> fields() override {
    return {{"queries", "kv file with dumped queries, and the keys and values that the codes were made of",
             &queries},
            {"book", "file of the dictionary, codebooks or transform that the codes need", &book},
            {"index", "index file whose clusters --by clusters takes", &index}};
  }
  OptionField prompt_field() {
    return {"prompt",
            "tokens of each document that are its prompt; those behind were generated (--beside generated); "
            "0: all of them",
            &prompt, 0, 1e9};
  }
};

/// An index and where the documents of the codes are in it.
struct Clusters {
  IndexReader index;
  std::map<size_t, size_t> documents;  // by the document of the codes

  /// rule: layers that hold a window only, and that the index therefore leaves out, become dense ones.
  Clusters(const std::string& file, const CodesReader& codes, const std::vector<int>& layers,
           SelectionRule& rule)
      : index(file) {
    check_same_model(index.name(), index.info().model, codes.name(), codes.info().model);
    for (const Match& match : match_documents(codes, index)) {
      if (match.original != codes.info().documents.offsets[match.original_document])
        throw bad_input("{}: document '{}' begins at another token than in {}", index.name(),
                        index.info().documents.names[match.other_document], codes.name());
      documents[match.original_document] = match.other_document;
    }
    const Documents& stored = codes.info().documents;
    for (const int layer : layers) {
      if (has(layer)) continue;
      if (stored.held(layer) == stored.tokens())
        throw bad_input("{}: there is no layer {}; it has layers {}", index.name(), layer,
                        ranges_text(index.layers()));
      rule.dense_layers.push_back(layer);
    }
  }

  bool has(int layer) const { return std::ranges::count(index.layers(), layer) > 0; }

  ClusterIndex read(int layer, size_t document, size_t head, std::string_view name) const {
    const auto place = documents.find(document);
    if (place == documents.end())
      throw bad_input("{}: has no document '{}'; index --append adds documents", index.name(), name);
    return index.read(layer, place->second, head);
  }
};

/// The codes from which select chooses tokens, and how it chooses.
struct SelectWork {
  const CodesReader& codes;
  const CodecOfFile& codec;
  const KvReader& kv;
  const SelectionRule& rule;
  const ScoreForms& forms;
  uint64_t prompt = UINT64_MAX;
  const Clusters* clusters = nullptr;
  Engine* engine = nullptr;
};

/// A selector without its first tokens, which a layer does not hold.
class HeldSelector final : public Selector {
 public:
  HeldSelector(std::unique_ptr<Selector> all, uint64_t first)
      : all_(std::move(all)), first_(static_cast<size_t>(first)) {}
  size_t tokens() const override { return all_->tokens() - first_; }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override {
    Matrix<float> scores(queries.rows(), all_->tokens());
    all_->scores(queries, scores);
    for (size_t i = 0; i < out.rows(); ++i)
      std::ranges::copy(scores.row(i).subspan(first_), out.row(i).begin());
  }

 private:
  std::unique_ptr<Selector> all_;
  size_t first_;
};

/// One layer: selections for all queries in matched documents, in the order of the kv file.
class LayerRun {
 public:
  LayerRun(const SelectWork& work, int layer)
      : work_(work), rule_(work.rule), layer_(layer), queries_(*work.kv.queries(layer)) {
    if (rule_.is_dense(layer))  // it chooses all tokens
      rule_ = {.by = work.rule.by, .budget = UINT64_MAX, .share = work.rule.share};
  }

  size_t selected_heads() const { return rule_.share == Share::each ? heads_ * per_head_ : heads_; }

  void run(const Match& match) {
    const TokenQueries asked = queries_of(queries_, match.original, match.count);
    const size_t steps = asked.tokens.size();
    if (steps == 0) return;
    documents.add(work_.codes.info().documents.names[match.other_document], steps);
    beside.resize(query_rows.size() + steps);
    const auto positions = work_.kv.positions(match.original, match.count);
    // Tokens count from the first that the layer holds, up to the results.
    const HeldTokens held(work_.kv, work_.codes, match);
    const uint64_t held_from = held.first(layer_), prompt = work_.prompt - std::min(work_.prompt, held_from);
    SelectionRule rule = rule_;
    rule.first -= std::min(rule.first, held_from);
    std::vector<uint64_t> visible, from;
    for (const uint64_t token : asked.tokens) {
      const uint64_t seen = work_.forms.first_seen(layer_, positions, positions[token]);
      held.check(layer_, seen, token + 1, positions[token]);
      visible.push_back(token + 1 - held_from);
      from.push_back(seen - held_from);
      query_rows.push_back(match.original + token);
    }
    const auto tokens = static_cast<size_t>(match.count - held_from);
    Matrix<float> keys(tokens, heads_ * dims_), values(tokens, heads_ * value_dims_);
    Matrix<float> stored_keys = keys, stored_values = values;
    const GroupShape shape = group_shape(work_.kv.model(), {layer_}, Side::key);
    const StoredSides stored(work_.codes, work_.codec.codec(), shape, match.other_document);
    held.read(Side::key, layer_, held_from, keys);
    held.read(Side::value, layer_, held_from, values);
    decode_sides(stored.keys(), stored.values(), 0, stored_keys, stored_values);
    const ScoreForm form = work_.forms.of(layer_);
    const size_t first_selection = selections.chosen.size(), per_step = selected_heads();
    selections.chosen.resize(first_selection + steps * per_step);
    for (size_t head = 0; head < heads_; ++head) {
      const auto own_keys = keys.view().columns(head * dims_, dims_);
      const MatrixView<const float> own_stored = stored_keys.view().columns(head * dims_, dims_);
      const auto selector = make_selector(match, stored.keys(), head, own_keys, own_stored);
      std::vector<uint32_t> heavy;  // those that the codes keep whole, at most as many as requested
      if (rule_.heavy > 0) heavy = stored.keys().kept_whole(head);
      heavy.resize(std::min<size_t>(heavy.size(), rule_.heavy));
      std::vector<uint64_t> waiting;
      TokenChooser chooser;  // of the device, for the current selector, if it has one
      if (cluster_index_) {
        for (size_t i = 0; i < steps; ++i) {
          const uint64_t all = held_from + visible[i];
          waiting.push_back(std::min(all - cluster_index_->covered(all), visible[i] - from[i]));
        }
        if (work_.engine && held_from == 0)
          chooser = work_.engine->make<ClusterChoice>(*cluster_index_, match.count);
      }
      Matrix<float> queries(steps * per_head_, dims_);
      for (size_t i = 0; i < queries.rows(); ++i) {
        const auto all_heads = asked.rows.row(i / per_head_);
        std::ranges::copy(all_heads.subspan((head * per_head_ + i % per_head_) * dims_, dims_),
                          queries.row(i).begin());
      }
      const uint64_t sink = cluster_index_ ? cluster_index_->sink() : 0;
      auto result =
          select_tokens({.selector = selector.get(),
                         .keys = own_keys,
                         .values = values.view().columns(head * value_dims_, value_dims_),
                         .stored_keys = own_stored,
                         .stored_values = stored_values.view().columns(head * value_dims_, value_dims_),
                         .queries = queries,
                         .per_step = per_head_,
                         .visible = visible,
                         .from = from,
                         .form = form.of_heads(head * per_head_, per_head_),
                         .waiting = waiting,
                         .prompt = prompt,
                         .sink = sink - std::min(sink, held_from),
                         .heavy = heavy,
                         .chooser = chooser},
                        rule);
      for (std::vector<Scored>& chosen : result.chosen)
        for (Scored& token : chosen) token.id += static_cast<uint32_t>(held_from);
      const size_t own = result.chosen.size() / steps;
      for (size_t i = 0; i < result.chosen.size(); ++i)
        selections.chosen[first_selection + i / own * per_step + head * own + i % own] =
            std::move(result.chosen[i]);
      quality.add(result.quality);
      // The same of every head: a document's batches end with the same tokens.
      for (size_t i = 0; i < steps; ++i)
        beside[beside.size() - steps + i] =
            static_cast<uint32_t>(rule.beside_of({.queries = {},
                                                  .visible = visible[i],
                                                  .unscored = waiting.empty() ? 0 : waiting[i],
                                                  .from = from[i]},
                                                 visible[i] - std::min(prompt, visible[i])));
    }
  }

  LayerSelections selections;
  SelectionQuality quality;
  std::vector<uint64_t> query_rows;
  std::vector<uint32_t> beside;  // of each query
  Documents documents;           // of the queries

 private:
  /// stored: the keys that the codes give back.
  std::unique_ptr<Selector> make_selector(const Match& match, const DocumentView& coded_keys, size_t head,
                                          MatrixView<const float> keys, MatrixView<const float> stored) {
    const bool by_index = rule_.by == SelectBy::signs ||
                          (rule_.by == SelectBy::codes && work_.codec.entry().capabilities.has_index);
    if (by_index) return coded_keys.selector(head, rule_.by == SelectBy::signs);
    if (work_.clusters && work_.clusters->has(layer_)) {
      const std::string_view name = work_.codes.info().documents.names[match.other_document];
      cluster_index_ = work_.clusters->read(layer_, match.other_document, head, name);
      auto all = std::make_unique<ClusterSelector>(*cluster_index_, match.count);
      const uint64_t first = work_.codes.info().documents.left_out_of(layer_, match.other_document);
      if (first > 0) return std::make_unique<HeldSelector>(std::move(all), first);
      return all;
    }
    if (rule_.by == SelectBy::quest) {
      auto quest = std::make_unique<QuestSelector>(dims_);
      quest->append(keys);
      return quest;
    }
    const MatrixView<const float> multiplied = rule_.by == SelectBy::oracle ? keys : stored;
    return std::make_unique<OracleSelector>(multiplied);
  }

  const SelectWork& work_;
  SelectionRule rule_;
  int layer_;
  KvReader::Queries queries_;
  size_t heads_ = as_size(work_.kv.model().layer_shape(layer_).heads);
  size_t per_head_ = as_size(work_.kv.model().num_q_heads) / heads_;
  size_t dims_ = as_size(work_.kv.model().layer_shape(layer_).key_dim);
  size_t value_dims_ = as_size(work_.kv.model().layer_shape(layer_).value_dim);
  std::optional<ClusterIndex> cluster_index_;  // the current selector refers to it
};

struct SelectedLayer {
  std::string name;
  SelectionQuality quality;
  bool is_dense = false;
};

double mean(double sum, uint64_t count) { return count > 0 ? sum / static_cast<double>(count) : 0; }

/// Bytes that a step of one head fetches, on average, with the cache of that number. token_bytes: bytes of a key and a value of one
/// head in the codes.
double step_bytes(const SelectionQuality& quality, size_t cache, double token_bytes) {
  return mean(token_bytes * double(quality.cache[cache].fetched), quality.count.selections);
}

Measures measures_of(const SelectedLayer& result, double token_bytes) {
  const SelectionQuality& q = result.quality;
  const uint64_t selections = q.count.selections;
  const auto bytes = [&](size_t cache) {
    return size_text(static_cast<uint64_t>(step_bytes(q, cache, token_bytes)));
  };
  Json caches = Json::array();
  for (size_t i = 0; i < std::size(kCacheSteps); ++i)
    caches.push_back({{"steps", kCacheSteps[i]},
                      {"hit_rate", q.cache[i].hit_rate()},
                      {"fetched_tokens", mean(double(q.cache[i].fetched), selections)},
                      {"fetched_bytes", step_bytes(q, i, token_bytes)}});
  return {{"layer", result.name},
          {"dense", result.is_dense},
          number_of("selections", {"selections"}, selections),
          decimal("tokens", {"tokens", "of each"}, mean(double(q.count.tokens), selections), 1),
          decimal("visible", {"out of"}, mean(double(q.count.visible), selections), 1),
          decimal("beside", {"and", "beside"}, mean(double(q.count.beside), selections), 1),
          decimal("recall", {"recall"}, mean(q.recall, selections), 4),
          decimal("mass", {"attention", "covered"}, mean(q.mass, q.outputs), 4),
          rounded("output_error", {"output", "error"}, mean(q.output_error, q.outputs), 3),
          rounded("stored_error", {"with codes", "error"}, mean(q.stored_error, q.outputs), 3),
          {"caches", caches},
          decimal(nullptr, {"hits", "R=1"}, q.cache[1].hit_rate(), 3),
          decimal(nullptr, {"hits", "R=2"}, q.cache[2].hit_rate(), 3),
          word(nullptr, {"fetched", "R=0"}, bytes(0)),
          word(nullptr, {"fetched", "R=1"}, bytes(1))};
}

std::string report(const std::vector<SelectedLayer>& results, const SelectOptions& options,
                   double token_bytes, double seconds) {
  Json layers = Json::array();
  MeasureTable table("layer");
  for (const SelectedLayer& result : results) {
    const Measures measures = measures_of(result, token_bytes);
    layers.push_back(json_of(measures));
    if (result.name == "all") table.rule();
    table.row(result.is_dense ? result.name + ", dense" : result.name, measures);
  }
  if (!options.common.json) return table.text();
  return text_of({{"output", options.output.path}, {"seconds", seconds}, {"layers", layers}});
}

void declare(Command& command, SelectOptions& options) {
  command.describe(
      "CODES --queries KV [-o SELECTION]",
      "Selects for each dumped query the tokens it should attend to, by what the codes hold, and compares "
      "the selection with the original keys and values. The table shows the share of the tokens with the "
      "largest true products that are selected (recall), the share of the attention weights that the "
      "selected tokens have, and the error of attention over these tokens alone, with the original keys and "
      "values and with those of the codes: of what a query sees in the layer, with the windows, soft caps and "
      "sinks of the model, which dump-kv stores. It also shows the share of hits in a cache that keeps the tokens "
      "selected in the last R steps, and the bytes that a step of one head then fetches from the codes. The "
      "line for all layers leaves out those that attend to all tokens (--dense-layers).",
      "kvcodec dump-kv --model DIR --text book.txt --queries last:32 -o kv.h5\n"
      "kvcodec encode kv.h5 --codec selfindex -o codes.h5\n"
      "kvcodec select codes.h5 --queries kv.h5 --ratio 0.075 -o selection.h5");
  command.group("Input and output");
  command.input("CODES", "codes file; - is standard input", options.input);
  command.options(options, {{"queries", "KV"}, {"book", "FILE"}, {"index", "INDEX"}});
  options.output.declare(command, "selection file to write (without it there is only the report)");
  options.layers.declare(command);
  options.documents.declare(command);
  command.group("Selection");
  command.options(options.selection, {{"dense-layers", "LIST"}});
  command.option(options.prompt_field());
  options.common.declare(command);
}

std::string select(Command& command) {
  SelectOptions options;
  options.selection = SelectionOptions::peek(command, "by", options.selection.by);
  declare(command, options);
  command.parse();
  options.selection.check();
  if (options.queries.empty()) throw usage_error("--queries must name the kv file with the queries");
  const bool by_clusters = options.selection.by == SelectBy::clusters;
  if (by_clusters && options.index.empty())
    throw usage_error("--by clusters needs an index file; name it with --index, kvcodec index makes it");
  if (!by_clusters && !options.index.empty()) throw usage_error("--index is for --by clusters only");
  const std::vector<std::string> read{options.input, options.queries, options.book, options.index};
  check_inputs(read);
  options.output.keep(read);
  options.output.check_if_given(command, options.common);
  options.common.apply(command, true);

  const Stopwatch watch;
  const CodesReader codes(options.input);
  const KvReader kv(options.queries);
  const CodecOfFile codec(codes, options.book, options.common.engine());
  if (codes.info().layer_group != 1)
    throw usage_error("{}: codes of {} layers together cannot be selected from", codes.name(),
                      codes.info().layer_group);
  const auto layers = options.layers.choose(codes.info().groups, codes.name());
  SelectionRule rule = options.selection.rule(codes.info().model.num_layers);
  const auto heads = [&](int layer) { return codes.info().model.layer_shape(layer).heads; };
  for (const int layer : layers)
    if (heads(layer) != heads(layers.front()) && rule.share != Share::each)
      throw usage_error(
          "{}: layer {} has {}, and layer {} has {}: --share each selects for query heads, of which all layers "
          "have as many",
          codes.name(), layers.front(),
          counted(static_cast<uint64_t>(heads(layers.front())), "key/value head"), layer, heads(layer));
  check_queries(kv, codes, layers);
  if (options.selection.by == SelectBy::signs && !codec.entry().capabilities.has_index)
    throw usage_error(
        "{}: the codec {} has no index whose signs could choose; --by codes multiplies with its keys",
        codes.name(), codec.entry().name);
  const auto matches =
      match_documents(kv, codes, options.documents.choose(codes.info().documents, codes.name()));
  std::optional<Clusters> clusters;
  if (!options.index.empty()) clusters.emplace(options.index, codes, layers, rule);

  const ScoreForms forms = forms_of_scores(kv, options.common);
  const auto run = [&](OutputFile* output) {
    const SelectWork work{.codes = codes,
                          .codec = codec,
                          .kv = kv,
                          .rule = rule,
                          .forms = forms,
                          .prompt = options.prompt > 0 ? static_cast<uint64_t>(options.prompt) : UINT64_MAX,
                          .clusters = clusters ? &*clusters : nullptr,
                          .engine = options.common.engine()};
    SelectionInfo info{
        .model = kv.model(), .parameters = to_record(options.selection), .query_rows = {}, .documents = {}};
    info.parameters.set("prompt", options.prompt);
    std::map<int, LayerSelections> selections;
    std::vector<SelectedLayer> results;
    SelectionQuality total;
    ProgressBar bar("select", "documents", options.common.quiet);
    size_t done = 0;
    uint64_t found = 0;
    for (const int layer : layers) {
      LayerRun of_layer(work, layer);
      for (const Match& match : matches) {
        of_layer.run(match);
        bar.update(static_cast<double>(++done) / static_cast<double>(layers.size()),
                   static_cast<double>(matches.size()));
      }
      info.heads = of_layer.selected_heads();
      info.query_rows = of_layer.query_rows;
      if (!rule.is_dense(layer)) {  // where windows are short there may be fewer
        info.beside.resize(of_layer.beside.size());
        std::ranges::transform(info.beside, of_layer.beside, info.beside.begin(),
                               [](uint32_t a, uint32_t b) { return std::max(a, b); });
      }
      info.documents = of_layer.documents;
      if (!rule.is_dense(layer)) total.add(of_layer.quality);
      found += of_layer.quality.count.selections;
      results.push_back({fmt::format("{}", layer), of_layer.quality, rule.is_dense(layer)});
      selections[layer] = std::move(of_layer.selections);
    }
    if (found == 0) throw bad_input("{}: no query belongs to a chosen document", kv.name());
    if (total.count.selections > 0) results.push_back({"all", total});
    if (std::ranges::all_of(info.beside, [](uint32_t tokens) { return tokens == 0; })) info.beside.clear();
    if (output)
      write_selections(*output, info, selections,
                       command.provenance(merged_history(
                           {codes.type().history, kv.type().history,
                            clusters ? clusters->index.type().history : std::vector<std::string>{}})));
    return results;
  };
  return run_perhaps_to_file(options.output, run, [&](const std::vector<SelectedLayer>& results) {
    const LayerShape shape = codes.info().model.layer_shape(0);
    const double token_bytes =
        rate_of(codes).rate.bits_per_value / 8 * static_cast<double>(shape.width()) / shape.heads;
    return report(results, options, token_bytes, watch.seconds());
  });
}

}  // namespace

CommandEntry select_command() {
  return {CommandGroup::attend, 3, "select", "choose the tokens to attend to, and measure the choice",
          select};
}

}  // namespace kvcodec::cli
