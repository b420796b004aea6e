#include <algorithm>
#include <functional>
#include <optional>

#include "cli/frame/common.hpp"
#include "cli/inputs/cache_source.hpp"
#include "cli/inputs/documents.hpp"
#include "lib/core/checked.hpp"
#include "lib/engine/engine.hpp"

namespace kvcodec::cli {
namespace {

struct IndexOptions final : CommandOptions {
  std::string input, book, append;
  int64_t prompt = 0;
  Additions additions;
  ClusterOptions clusters;
  ShardOption shard;

  std::vector<OptionField> fields() override {
    return {
        {"book", "file of the book the codes were made with; not needed if it is inside", &book},
        {"append",
         "start from this index and add the documents of CACHE that it does not have, with the options it was "
         "made with",
         &append},
        additions.replace_field(),
        additions.continue_field(
            "documents that have the name of one in the index, and go on where it ends, add "
            "their tokens to it, batch by batch")};
  }
};

struct Plan {
  size_t number = 0;                        // among the documents of both, for NameRule
  std::optional<size_t> old_document = {};  // of the index that grows
  std::optional<size_t> source_document = {};
  uint64_t source_first = 0;        // first token of the source's document after the indexed ones
  std::vector<uint64_t> ends = {};  // of the new batches
};

struct IndexedLayer {
  int layer = 0;
  uint64_t clusters = 0, tokens = 0, largest = 0;
  ClusteringEffort effort;
};

class Indexing {
 public:
  Indexing(StoredCache& source, const IndexOptions& options, const IndexReader* old)
      : source_(source), options_(options), old_(old) {
    info.model = source.model();
    info.sink = old ? old->info().sink : static_cast<uint64_t>(options.clusters.sink);
    if (old) {
      for (size_t i = 0; i < old->info().documents.count(); ++i)
        plans_.push_back({.number = i, .old_document = i});
    }
    add_documents();
  }

  IndexInfo info;
  NameRule names = {false, {}};    ///< documents that are left out or replaced
  std::vector<int> window_layers;  ///< that get no clusters
  std::vector<uint64_t> positions;
  std::vector<uint32_t> tokens;
  uint64_t new_tokens() const { return new_tokens_; }

  IndexedLayer run(int layer, IndexWriter& writer, uint64_t budget, const std::function<void(double)>& show) {
    const LayerShape shape = info.model.layer_shape(layer);
    const auto heads = as_size(shape.heads), dims = as_size(shape.key_dim);
    std::vector<ClusterIndex> indices;
    for (const Plan& plan : plans_)
      for (size_t head = 0; head < heads; ++head)
        indices.push_back(plan.old_document ? old_->read(layer, *plan.old_document, head)
                                            : ClusterIndex(dims, info.sink));
    IndexedLayer result{.layer = layer, .effort = {}};
    Batch batch;
    for (size_t document = 0; document < plans_.size(); ++document) {
      const Plan& plan = plans_[document];
      if (plan.ends.empty()) continue;
      const uint64_t rows = plan.ends.back() - indices[document * heads].end();
      // As many heads at a time as memory holds; small documents are processed together.
      const auto at_once = static_cast<size_t>(
          std::clamp<uint64_t>(budget / checked_mul(rows, dims * sizeof(float)), 1, heads));
      for (size_t head = 0; head < heads; head += at_once) {
        const size_t taken = std::min(at_once, heads - head);
        const uint64_t bytes = rows * taken * dims * sizeof(float);
        if (batch.bytes > 0 && batch.bytes + bytes > budget) finish(batch, result, show);
        batch.keys.push_back(read(layer, plan, head, taken, rows, budget));
        for (size_t i = 0; i < taken; ++i) {
          const size_t place = document * heads + head + i;
          batch.tasks.push_back({.index = &indices[place],
                                 .keys = batch.keys.back().view().columns(i * dims, dims),
                                 .ends = plan.ends,
                                 .stream = (static_cast<uint64_t>(layer) * heads + head + i) << 20 ^
                                           (documents_before_ + document)});
        }
        batch.bytes += bytes;
        batch.tokens += rows * taken;
      }
    }
    finish(batch, result, show);
    for (const ClusterIndex& index : indices) {
      result.clusters += index.clusters();
      result.tokens += index.ids().size();
      for (size_t c = 0; c < index.clusters(); ++c)
        result.largest = std::max<uint64_t>(result.largest, index.tokens_of(c).size());
    }
    writer.add_layer(layer, indices);
    return result;
  }

 private:
  struct Batch {
    std::vector<Matrix<float>> keys;
    std::vector<ClusterTask> tasks;
    uint64_t bytes = 0, tokens = 0;
  };

  void finish(Batch& batch, IndexedLayer& result, const std::function<void(double)>& show) {
    const double count = static_cast<double>(batch.tokens) / info.model.layer_shape(result.layer).heads;
    at_dataset(source_.name(), Side::key, result.layer, [&] {
      result.effort.add(add_batches(
          batch.tasks, options_.clusters, static_cast<uint64_t>(options_.common.seed),
          [&](double done, double total, std::string_view) { show(done_ + count * done / total); },
          kmeans_of(batch)));
    });
    done_ += count;
    batch = {};
  }

  /// A device runs one k-means after the other: on an H100, 1,440 of them, each of 1,024 tokens in 64 clusters, took 5.65 s,
  /// compared with 1.03 s on 16 threads of the CPU. With --device auto it only gets large ones.
  KmeansFunction kmeans_of(const Batch& batch) const {
    constexpr uint64_t kDistancesThatPay = uint64_t{1} << 19;
    Engine* const engine = options_.common.engine();
    const auto pays = [&](const ClusterTask& head) {
      const uint64_t end = head.ends.empty() ? head.index->end() : head.ends.front();
      const uint64_t clusters = head.index->end() == 0
                                    ? options_.clusters.clusters_of(end)
                                    : static_cast<uint64_t>(options_.clusters.batch_clusters);
      return checked_mul(end - head.index->end(), clusters) >= kDistancesThatPay;
    };
    if (!engine ||
        (options_.common.device == DeviceChoice::automatic && std::ranges::none_of(batch.tasks, pays)))
      return {};
    return engine->make<KmeansOnDevice>();
  }

  /// Keys of heads [head, head + taken) of the tokens to index.
  Matrix<float> read(int layer, const Plan& plan, size_t head, size_t taken, uint64_t rows, uint64_t budget) {
    const auto dims = as_size(info.model.layer_shape(layer).key_dim);
    const size_t width = info.model.layer_shape(layer).width(Side::key);
    Matrix<float> keys(rows, taken * dims);
    const size_t chunk =
        chunk_rows(budget, width * sizeof(float) + source_.scratch_bytes_per_row(Side::key, layer));
    Matrix<float> all(std::min<uint64_t>(chunk, rows), width);
    for (uint64_t first = 0; first < rows; first += chunk) {
      const auto part = all.view().rows(0, std::min<uint64_t>(chunk, rows - first));
      source_.decode(Side::key, layer, *plan.source_document, plan.source_first + first, part);
      for (size_t i = 0; i < part.rows(); ++i)
        std::ranges::copy(part.row(i).subspan(head * dims, taken * dims), keys.row(first + i).begin());
    }
    return keys;
  }

  /// Finds the places of the source's chosen documents; gathers tokens and positions of all.
  void add_documents() {
    const auto all = options_.documents.choose(source_.documents(), source_.name());
    const auto chosen = options_.shard.shard().among(source_.documents(), all);
    if (!chosen.empty())
      documents_before_ = static_cast<uint64_t>(std::ranges::lower_bound(all, chosen.front()) - all.begin());
    const size_t before = plans_.size();
    if (old_) {
      names = NameRule(options_.additions.replace, old_->name(),
                       "; --continue adds to it what goes on where it ends");
      for (size_t i = 0; i < before; ++i) names.add(old_->info().documents.names[i], i);
    }
    for (size_t k = 0; k < chosen.size(); ++k) {
      const auto same = [&](size_t earlier) {
        return earlier < before ? holds_all(earlier, chosen[k])
                                : same_tokens(source_, chosen[earlier - before], source_, chosen[k]);
      };
      if (Plan* const plan = continued_by(chosen[k]))
        add_batches_to(*plan, chosen[k]);
      else if (!old_ || names.takes(source_.documents().names[chosen[k]], before + k, same))
        add_batches_to(plans_.emplace_back(Plan{.number = before + k}), chosen[k]);
    }
    std::erase_if(plans_, [&](const Plan& plan) { return names.gave_way(plan.number); });
    gather_tokens();
    for (const Plan& plan : plans_)
      if (!plan.ends.empty()) new_tokens_ += plan.ends.back() - indexed(plan);
  }

  /// Tokens of a plan's document that the index has.
  uint64_t indexed(const Plan& plan) const {
    return plan.old_document ? old_->info().documents.length(*plan.old_document) : 0;
  }

  void add_batches_to(Plan& plan, size_t document) {
    plan.source_document = document;
    if (plan.old_document) plan.source_first = *next_of(*plan.old_document, document);
    plan.ends = new_batches(document, plan.source_first, indexed(plan));
    if (!plan.ends.empty() && plan.ends.back() > UINT32_MAX)
      throw bad_input("{}: document '{}' has {} tokens; an index numbers them in 32 bits", source_.name(),
                      source_.documents().names[document], plan.ends.back());
  }

  std::vector<uint64_t> new_batches(size_t document, uint64_t next, uint64_t length) const {
    return next_batches(length, length + source_.documents().length(document) - next,
                        static_cast<uint64_t>(options_.prompt), options_.clusters);
  }

  /// With --continue: the plan of a document of the index to which the source's adds tokens, at once or when they fill a batch.
  Plan* continued_by(size_t document) {
    if (!options_.additions.continues) return nullptr;
    const auto goes_on = [&](const Plan& plan) {
      return plan.old_document && !plan.source_document &&
             old_->info().documents.names[*plan.old_document] == source_.documents().names[document] &&
             next_of(*plan.old_document, document) && !holds_all(*plan.old_document, document);
    };
    const auto found = std::ranges::find_if(plans_, goes_on);
    return found == plans_.end() ? nullptr : &*found;
  }

  /// True if the document of the index is the source's, from its first token to the last one that fills a batch. Files without ids
  /// cannot show it.
  bool holds_all(size_t old_document, size_t document) const {
    if (!source_.has_tokens() || !old_->has_tokens()) return false;
    const uint64_t length = old_->info().documents.length(old_document);
    const auto next = next_of(old_document, document);
    return next && *next == length && new_batches(document, *next, length).empty();
  }

  /// The token of the source's document that directly follows the indexed tokens of the old one; nothing if none does, or tokens
  /// that both have differ.
  std::optional<uint64_t> next_of(size_t old_document, size_t document) const {
    const uint64_t first = source_.documents().offsets[document],
                   old_first = old_->info().documents.offsets[old_document];
    const auto here = source_.positions_of(document);
    const auto before = old_->positions(old_first, old_->info().documents.length(old_document));
    if (before.empty()) return 0;
    const auto next = static_cast<uint64_t>(std::ranges::upper_bound(here, before.back()) - here.begin());
    if (next > before.size() || !std::equal(here.begin(), here.begin() + static_cast<ptrdiff_t>(next),
                                            before.end() - static_cast<ptrdiff_t>(next)))
      return std::nullopt;
    if (next == 0 && (here.empty() || here.front() != before.back() + 1)) return std::nullopt;
    if (next > 0 && source_.has_tokens() && old_->has_tokens() &&
        source_.tokens(first, next) != old_->tokens(old_first + before.size() - next, next))
      return std::nullopt;
    return next;
  }

  void gather_tokens() {
    const bool known = source_.has_tokens() && (!old_ || old_->has_tokens());
    const auto append = [](auto& all, const auto& more) { all.insert(all.end(), more.begin(), more.end()); };
    for (const Plan& plan : plans_) {
      const uint64_t kept = indexed(plan), length = plan.ends.empty() ? kept : plan.ends.back();
      std::vector<uint64_t>& ends = info.batch_ends.emplace_back();
      if (plan.old_document) {
        const Documents& documents = old_->info().documents;
        const uint64_t first = documents.offsets[*plan.old_document];
        info.documents.add(documents.names[*plan.old_document], length);
        ends = old_->info().batch_ends[*plan.old_document];
        append(positions, old_->positions(first, kept));
        if (known) append(tokens, old_->tokens(first, kept));
      } else {
        info.documents.add(source_.documents().names[*plan.source_document], length);
      }
      append(ends, plan.ends);
      if (plan.ends.empty()) continue;
      const uint64_t first = source_.documents().offsets[*plan.source_document] + plan.source_first;
      append(positions, source_.positions(first, length - kept));
      if (known) append(tokens, source_.tokens(first, length - kept));
    }
  }

  StoredCache& source_;
  const IndexOptions& options_;
  const IndexReader* old_;
  std::vector<Plan> plans_;
  // Documents of other shares: random numbers depend on a document's number in the whole.
  uint64_t documents_before_ = 0;
  uint64_t new_tokens_ = 0;
  double done_ = 0;  // tokens clustered, over all layers
};

std::string report(const std::vector<IndexedLayer>& results, const IndexOptions& options,
                   const Indexing& indexing, double seconds) {
  const uint64_t bytes = file_bytes(options.output.path);
  Json layers = Json::array();
  MeasureTable table("layer");
  for (const IndexedLayer& result : results) {
    const double mean_size = result.clusters > 0 ? double(result.tokens) / double(result.clusters) : 0;
    const Measures measures = {{"layer", result.layer},
                               number_of("clusters", {"clusters"}, result.clusters),
                               number_of("tokens", {"tokens", "in them"}, result.tokens),
                               decimal("mean_size", {"mean", "size"}, mean_size, 1),
                               number_of("largest", {"largest"}, result.largest),
                               {"runs", result.effort.runs},
                               {"converged", result.effort.converged},
                               number_of("most_rounds", {"rounds", "at most"}, result.effort.max_rounds)};
    layers.push_back(json_of(measures));
    table.row(fmt::format("{}", result.layer), measures);
  }
  if (options.common.json) {
    Json json = {{"output", options.output.path},
                 {"documents", indexing.info.documents.count()},
                 {"indexed_tokens", indexing.info.documents.tokens()},
                 {"new_tokens", indexing.new_tokens()},
                 {"file_bytes", bytes},
                 {"seconds", seconds}};
    json.update(json_of(indexing.names.measures()));
    if (!indexing.window_layers.empty()) json["layers_without_clusters"] = indexing.window_layers;
    json["layers"] = layers;
    return text_of(json);
  }
  return table.text() + fmt::format("{}: {} in {}, {} new, {}, {}\n", options.output.path,
                                    counted(indexing.info.documents.tokens(), "token"),
                                    counted(indexing.info.documents.count(), "document"),
                                    grouped(indexing.new_tokens()), size_text(bytes), time_text(seconds));
}

void declare(Command& command, IndexOptions& options) {
  command.describe(
      "CACHE [options] -o INDEX",
      "Groups the keys of every layer, head and document into semantic clusters, whose centroids say which "
      "tokens a query should look at (ClusterKV). The cache may be stored by any codec; the index only names "
      "tokens. The first tokens are in no cluster and always kept. A document's prompt is clustered "
      "together; "
      "tokens that come later wait until there are --batch of them and are clustered by themselves, so what "
      "is indexed never changes. select --by clusters chooses tokens with it.",
      "kvcodec dump-kv --model DIR --text book.txt --queries last:32 -o kv.h5\n"
      "kvcodec index kv.h5 -o index.h5\n"
      "kvcodec encode kv.h5 --codec none -o codes.h5\n"
      "kvcodec select codes.h5 --queries kv.h5 --by clusters --index index.h5");
  command.group("Input and output");
  command.input("CACHE", "kv or codes file; - is standard input", options.input);
  command.options(options, {{"book", "FILE"}, {"append", "INDEX"}});
  options.output.declare_with_skip(command, "index file to write");
  options.layers.declare(command);
  options.documents.declare(command);
  options.shard.declare(command, "nothing joins such indices: each is used with the codes of its share");
  command.group("Clusters");
  command.options(options.clusters);
  command.option({"prompt", "tokens of each document that are its prompt; the rest comes in batches; 0: all",
                  &options.prompt, 0, 1e12});
  options.common.declare(command);
}

/// Takes out of `layers` those that do not hold all tokens, and returns them.
std::vector<int> take_out_trimmed(std::vector<int>& layers, const Documents& documents) {
  std::vector<int> trimmed;
  for (const int layer : layers)
    if (documents.held(layer) < documents.tokens()) trimmed.push_back(layer);
  std::erase_if(layers, [&](int layer) { return documents.held(layer) < documents.tokens(); });
  return trimmed;
}

std::string index(Command& command) {
  IndexOptions options;
  declare(command, options);
  command.parse();
  options.additions.check(command, !options.append.empty(), "them");
  options.output.check(options.common);
  check_inputs({options.input, options.book, options.append});
  options.output.keep({options.input, options.book});
  options.common.apply(command, true);
  if (std::string report; options.output.made_before(command, options.common,
                                                     {options.input, options.book, options.append}, report))
    return report;

  const Stopwatch watch;
  const bool coded = identify(options.input).type == "codes";
  if (!coded && !options.book.empty())
    throw usage_error("{}: a kv file needs no book; leave out --book", options.input);
  StoredCache source(options.input, coded, options.book, options.common.engine());
  const auto held = options.output.hold(options.append, options.common);
  std::optional<IndexReader> old;
  if (!options.append.empty()) {
    old.emplace(options.append);
    check_same_model(source.name(), source.model(), old->name(), old->info().model);
    // The index continues with its own options.
    for (const OptionField& field : options.clusters.fields())
      if (command.given(field.name))
        throw usage_error("--append goes on as {} was made; leave out --{}", options.append, field.name);
    if (command.given("seed") || command.given("prompt") || command.given("layers") || options.shard.given())
      throw usage_error("--append goes on as {} was made; leave out --seed, --prompt, --layers and --shard",
                        options.append);
    const Record& record = old->info().parameters;
    with_context(old->name(), [&] {
      from_record(record, options.clusters);
      options.common.seed = record.get_int("seed");
      options.prompt = record.get_int("prompt");
      if (options.prompt < 0) throw bad_input("attribute 'parameters': prompt is {}", options.prompt);
    });
  }
  const std::vector<int>& there = source.layers();
  auto layers = old ? old->layers() : options.layers.choose(there, source.name());
  for (const int layer : layers)
    if (std::find(there.begin(), there.end(), layer) == there.end())
      throw bad_input("{}: there is no layer {}, which {} has; it has layers {}", source.name(), layer,
                      old->name(), ranges_text(there));
  const std::vector<int> trimmed = take_out_trimmed(layers, source.documents());
  if (!trimmed.empty()) {
    if (old || command.given("layers") || layers.empty())
      throw bad_input(
          "{}: layer {} holds what its window needs, and clusters need all tokens; dump the cache with "
          "--window-layers keep, or choose other --layers",
          source.name(), trimmed.front());
    options.common.note(
        "no clusters for layers {}, which hold what their windows need; select takes all tokens of them",
        ranges_text(trimmed));
  }
  Indexing indexing(source, options, old ? &*old : nullptr);
  indexing.window_layers = trimmed;
  indexing.names.note(options.common);
  indexing.info.parameters = to_record(options.clusters);
  indexing.info.parameters.set("prompt", options.prompt);
  indexing.info.parameters.set("seed", options.common.seed);

  const auto write = [&](OutputFile& output) {
    IndexWriter writer(output, indexing.info, indexing.tokens, indexing.positions);
    std::vector<IndexedLayer> results;
    results.reserve(layers.size());
    ProgressBar bar("index", "tokens", options.common.quiet);
    const auto total = static_cast<double>(indexing.new_tokens());
    for (const int layer : layers)
      results.push_back(
          indexing.run(layer, writer, chunk_budget(options.common.memory_bytes(), 0),
                       [&](double done) { bar.update(done / static_cast<double>(layers.size()), total); }));
    writer.finish(
        command.provenance(old ? merged_history({old->type().history, source.history()}) : source.history()));
    return results;
  };
  return run_to_file(
      options.output, write,
      [&](const std::vector<IndexedLayer>& results) {
        return report(results, options, indexing, watch.seconds());
      },
      held.get());
}

}  // namespace

CommandEntry index_command() {
  return {CommandGroup::attend, 2, "index", "group keys into semantic clusters that can be recalled", index};
}

}  // namespace kvcodec::cli
