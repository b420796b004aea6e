// kvcodec select CODES --queries KV [-o SELECTION]
//
//   --budget N, --ratio X    tokens to select for each query
//   --by codes|signs|quest|oracle  what scores them
//   --share max|mean|each    how query heads agree that share a key/value head
//
//   kvcodec select selfindex.h5 --queries kv.h5 --budget 64 -o selection.h5
#include <algorithm>
#include <chrono>

#include "cli/coding.hpp"
#include "cli/common.hpp"
#include "cli/json.hpp"
#include "cli/matching.hpp"
#include "cli/progress.hpp"
#include "cli/subcommands.hpp"
#include "cli/text.hpp"
#include "formats/kv_file.hpp"
#include "formats/selection_file.hpp"
#include "lib/codec/selection.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

struct SelectOptions final : Options {
  std::string input, queries, book;
  SelectionOptions selection;
  CommonOptions common;
  OutputOptions output;
  LayerSelection layers;
  DocumentSelection documents;

  std::vector<OptionField> fields() override {
    return {
        {.name = "queries",
         .help = "kv file with dumped queries, and the keys and values that the codes were made of",
         .target = &queries},
        {.name = "book", .help = "file of the dictionary or codebooks that the codes need", .target = &book}};
  }
};

/// One layer: selections for all queries that stand in matched documents, in the order of the kv file.
class LayerRun {
 public:
  LayerRun(const CodesReader& codes, const Codec& codec, const KvReader& kv, const SelectOptions& options,
           int layer)
      : codes_(codes),
        codec_(codec),
        kv_(kv),
        options_(options),
        layer_(layer),
        queries_(*kv.queries(layer)) {
    const ModelInfo& model = kv.model();
    heads_ = static_cast<size_t>(model.num_kv_heads);
    per_head_ = static_cast<size_t>(model.num_q_heads) / heads_;
    dims_ = static_cast<size_t>(model.head_dim);
  }

  size_t selected_heads() const { return options_.selection.share == "each" ? heads_ * per_head_ : heads_; }

  void run(const Match& match) {
    const auto& rows = queries_.token_rows;
    const auto begin = std::ranges::lower_bound(rows, match.original);
    const auto end = std::ranges::lower_bound(rows, match.original + match.count);
    const auto steps = static_cast<size_t>(end - begin);
    if (steps == 0) return;
    std::vector<uint64_t> visible;
    for (auto row = begin; row != end; ++row) {
      visible.push_back(*row - match.original + 1);
      query_rows.push_back(*row);
    }
    Matrix<float> keys(match.count, heads_ * dims_), values = keys, stored_keys = keys, stored_values = keys;
    for (const Side side : kSides) {
      const GroupShape shape = group_shape(kv_.model(), layer_, 1, side);
      const bool key = side == Side::key;
      kv_.read(shape, match.original, key ? keys : values);
      codec_.decode(shape, *codes_.document(side, layer_, match.other_document), 0,
                    key ? stored_keys : stored_values);
    }
    const size_t first_selection = selections.chosen.size(), per_step = selected_heads();
    selections.chosen.resize(first_selection + steps * per_step);
    for (size_t head = 0; head < heads_; ++head) {
      const auto own_keys = keys.view().columns(head * dims_, dims_);
      const auto selector = make_selector(match, head, own_keys);
      Matrix<float> queries(steps * per_head_, dims_);
      for (size_t i = 0; i < queries.rows(); ++i) {
        const size_t row = static_cast<size_t>(begin - rows.begin()) + i / per_head_;
        std::copy_n(
            queries_.values.data() + (row * heads_ + head) * per_head_ * dims_ + i % per_head_ * dims_, dims_,
            queries.row(i).begin());
      }
      auto result = select_tokens({.selector = selector.get(),
                                   .keys = own_keys,
                                   .values = values.view().columns(head * dims_, dims_),
                                   .stored_keys = stored_keys.view().columns(head * dims_, dims_),
                                   .stored_values = stored_values.view().columns(head * dims_, dims_),
                                   .queries = queries,
                                   .per_step = per_head_,
                                   .visible = visible},
                                  options_.selection);
      const size_t own = result.chosen.size() / steps;
      for (size_t i = 0; i < result.chosen.size(); ++i)
        selections.chosen[first_selection + i / own * per_step + head * own + i % own] =
            std::move(result.chosen[i]);
      quality.add(result.quality);
    }
  }

  LayerSelections selections;
  SelectionQuality quality;
  std::vector<uint64_t> query_rows;

 private:
  std::unique_ptr<Selector> make_selector(const Match& match, size_t head, MatrixView<const float> keys) {
    if (options_.selection.by == "codes" || options_.selection.by == "signs") {
      const auto document = codes_.document(Side::key, layer_, match.other_document);
      return codec_.selector(group_shape(kv_.model(), layer_, 1, Side::key), *document, head,
                             options_.selection.by == "signs");
    }
    if (options_.selection.by == "oracle") {
      oracle_rows_ = std::make_unique<CacheRows>(keys, keys);
      return std::make_unique<OracleSelector>(*oracle_rows_);
    }
    auto quest = std::make_unique<QuestSelector>(dims_);
    quest->append(keys);
    return quest;
  }

  const CodesReader& codes_;
  const Codec& codec_;
  const KvReader& kv_;
  const SelectOptions& options_;
  int layer_;
  KvReader::Queries queries_;
  size_t heads_ = 0, per_head_ = 0, dims_ = 0;
  std::unique_ptr<CacheRows> oracle_rows_;
};

struct LayerResult {
  std::string name;
  SelectionQuality quality;
};

double mean(double sum, uint64_t count) { return count > 0 ? sum / static_cast<double>(count) : 0; }

std::string report(const std::vector<LayerResult>& results, const SelectOptions& options, double seconds) {
  if (options.common.json) {
    Json layers = Json::array();
    for (const LayerResult& result : results) {
      const SelectionQuality& q = result.quality;
      layers.push_back({{"layer", result.name},
                        {"selections", q.selections},
                        {"tokens", mean(double(q.tokens), q.selections)},
                        {"visible", mean(double(q.visible), q.selections)},
                        {"recall", mean(q.recall, q.selections)},
                        {"mass", mean(q.mass, q.outputs)},
                        {"output_error", mean(q.output_error, q.outputs)},
                        {"stored_error", mean(q.stored_error, q.outputs)}});
    }
    return text_of({{"output", options.output.path}, {"seconds", seconds}, {"layers", layers}});
  }
  Table table({{"layer"},
               {"selections"},
               {"tokens", "of each"},
               {"out of"},
               {"recall"},
               {"attention", "covered"},
               {"output", "error"},
               {"with codes", "error"}});
  for (const LayerResult& result : results) {
    const SelectionQuality& q = result.quality;
    if (result.name == "all") table.rule();
    table.row(
        {result.name, grouped(q.selections), fmt::format("{:.1f}", mean(double(q.tokens), q.selections)),
         fmt::format("{:.1f}", mean(double(q.visible), q.selections)),
         fmt::format("{:.4f}", mean(q.recall, q.selections)), fmt::format("{:.4f}", mean(q.mass, q.outputs)),
         significant(mean(q.output_error, q.outputs), 3), significant(mean(q.stored_error, q.outputs), 3)});
  }
  return table.text();
}

}  // namespace

std::string select(Command& command) {
  SelectOptions options;
  command.describe("CODES --queries KV [-o SELECTION]",
                   "Chooses for each dumped query the tokens it should attend to, by the index that the "
                   "codes hold, and measures the "
                   "choice against the original keys and values: how many of the tokens with the largest "
                   "true products it finds "
                   "(recall), what share of the attention weights these tokens have, and how far attention "
                   "over them alone lies from "
                   "attention over all, with the original keys and values and with those of the codes.",
                   "kvcodec dump-kv --model DIR --text book.txt --queries last:32 -o kv.h5\n"
                   "kvcodec encode kv.h5 --codec selfindex -o codes.h5\n"
                   "kvcodec select codes.h5 --queries kv.h5 --ratio 0.075 -o selection.h5");
  command.group("Input and output");
  command.input("CODES", "codes file with an index; - is standard input", options.input);
  command.options(options, {{"queries", "KV"}, {"book", "FILE"}});
  options.output.declare(command, "selection file to write (without it there is only the report)");
  options.layers.declare(command);
  options.documents.declare(command);
  command.group("Selection");
  command.options(options.selection);
  options.common.declare(command);
  command.parse();
  options.selection.check();
  if (options.queries.empty()) throw usage_error("--queries must name the kv file with the queries");
  check_inputs({options.input, options.queries, options.book});
  if (!options.output.path.empty()) options.output.check(options.common);
  options.common.apply(command, false);

  const auto start = std::chrono::steady_clock::now();
  const CodesReader codes(options.input);
  const KvReader kv(options.queries);
  const CodecOfFile codec(codes, options.book);
  if (codes.info().layer_group != 1)
    throw usage_error("{}: codes of {} layers together cannot be selected from", codes.name(),
                      codes.info().layer_group);
  const auto layers = options.layers.choose(codes.info().groups, codes.name());
  check_queries(kv, codes, layers);
  if ((options.selection.by == "codes" || options.selection.by == "signs") &&
      !codec.entry().capabilities.has_index)
    throw usage_error("{}: the codec {} has no index; --by quest and --by oracle need none", codes.name(),
                      codec.entry().name);
  const auto matches = match_documents(token_axis(kv), token_axis(codes),
                                       options.documents.choose(codes.info().documents, codes.name()));

  std::optional<OutputFile> output;  // before the work: what is in its way is found at once
  if (!options.output.path.empty()) output.emplace(options.output.path, options.output.overwrite);
  std::map<int, LayerSelections> selections;
  std::vector<LayerResult> results;
  SelectionInfo info{.model = kv.model(), .parameters = to_record(options.selection), .query_rows = {}};
  SelectionQuality total;
  {
    ProgressBar bar("select", "documents", options.common.quiet);
    size_t done = 0;
    for (const int layer : layers) {
      LayerRun run(codes, codec.codec(), kv, options, layer);
      for (const Match& match : matches) {
        run.run(match);
        bar.update(static_cast<double>(++done) / static_cast<double>(layers.size()),
                   static_cast<double>(matches.size()));
      }
      info.heads = run.selected_heads();
      info.query_rows = run.query_rows;
      total.add(run.quality);
      results.push_back({fmt::format("{}", layer), run.quality});
      selections[layer] = std::move(run.selections);
    }
  }
  if (total.selections == 0) throw bad_input("{}: no query belongs to a chosen document", kv.name());
  results.push_back({"all", total});
  if (output) {
    write_selections(*output, info, selections,
                     command.provenance(merged_history({codes.type().history, kv.type().history})));
    output->commit();
    if (options.output.to_stdout()) return "";
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report(results, options, seconds);
}

}  // namespace kvcodec::cli
