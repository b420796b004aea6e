#include "lib/pipeline/selection.hpp"

#include <optional>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/mapped.hpp"
#include "lib/core/parallel.hpp"
#include "lib/engine/engine.hpp"
#include "lib/metrics/reconstruction.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {

/// The rows that choice `which` is for, among those of a step, one for each query head: all, or one.
template <class View>
static View own_rows(const SelectionRule& rule, View of_step, size_t which) {
  return rule.share == Share::each ? of_step.rows(which, 1) : of_step;
}

static uint64_t from_at(const SelectionTask& task, size_t step) {
  return task.from.empty() ? 0 : task.from[step];
}

static uint64_t waiting_at(const SelectionTask& task, size_t step) {
  return task.waiting.empty() ? 0 : task.waiting[step];
}

static MatrixView<const float> queries_at(const SelectionTask& task, size_t step) {
  return task.queries.rows(step * task.per_step, task.per_step);
}

static uint64_t generated_at(const SelectionTask& task, size_t step) {
  return task.visible[step] - std::min(task.prompt, task.visible[step]);
}

static TokenChoice choice_at(const SelectionTask& task, const SelectionRule& rule, size_t step,
                             size_t which) {
  return rule.choice({.queries = own_rows(rule, queries_at(task, step), which),
                      .visible = task.visible[step],
                      .sink = task.sink,
                      .heavy = task.heavy,
                      .unscored = waiting_at(task, step),
                      .from = from_at(task, step),
                      .form = rule.share == Share::each ? task.form.of_heads(which, 1) : task.form},
                     generated_at(task, step));
}

/// Chooses a step's tokens, unless is_chosen says that `chosen` holds them already, and returns their quality.
static SelectionQuality choose_at(const SelectionTask& task, const SelectionRule& rule, size_t step,
                                  bool is_chosen, std::span<std::vector<Scored>> chosen) {
  SelectionQuality quality;
  const auto queries = queries_at(task, step);
  const uint64_t visible = task.visible[step], from = from_at(task, step);
  const size_t n = queries.rows(), dims = task.keys.cols(), value_dims = task.values.cols();
  Matrix<float> scores(is_chosen ? 0 : n, task.selector->tokens()), exact(n, visible);
  if (!is_chosen) task.selector->scores(queries, scores);
  const CacheRows rows(task.keys.rows(0, visible), task.values.rows(0, visible));
  const CacheRows seen(task.keys.rows(from, visible - from), task.values.rows(from, visible - from));
  const CacheRows stored(task.stored_keys.rows(0, visible), task.stored_values.rows(0, visible));
  dot_products(queries, rows.keys, exact);
  Matrix<float> products = exact;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const TokenChoice choice = choice_at(task, rule, step, i);
    if (!is_chosen)
      chosen[i] = choose_tokens(choice, rule.choosing(), stored.keys, own_rows(rule, scores.view(), i));
    const uint64_t beside = rule.beside_of(choice, generated_at(task, step)), others = visible - beside;
    std::vector<uint32_t> ids = ids_in_order(chosen[i]);
    ids.resize(ids.size() - beside);  // the newest
    const TokenChoice best{.queries = choice.queries,
                           .visible = others,
                           .budget = ids.size(),
                           .from = from,
                           .form = choice.form};
    const auto wanted = ids_in_order(
        choose_tokens(best, {.share = rule.share}, rows.keys, own_rows(rule, products.view(), i)));
    quality.recall += selection_recall(ids, wanted);
    quality.count.add({.selections = 1, .tokens = ids.size(), .visible = others - from, .beside = beside});
  }
  const float scale = 1 / std::sqrt(static_cast<float>(dims));
  for (size_t i = 0; i < n; ++i) {
    const auto ids = ids_in_order(chosen[rule.share == Share::each ? i : 0]);
    const std::span<const uint32_t> tokens(ids);
    const ScoreForm form = task.form.of_heads(i, 1);
    for (float& product : exact.row(i)) product *= scale;
    if (form.cap > 0) soft_cap(exact.row(i), form.cap);
    std::vector<uint32_t> among_seen = ids;
    for (uint32_t& id : among_seen) id -= static_cast<uint32_t>(from);
    quality.mass += mass_covered(exact.row(i).subspan(from), among_seen);
    Matrix<float> full(1, value_dims), selected = full, decoded = full;
    const auto query = queries.rows(i, 1);
    attend(Attention{.queries = query, .rows = &seen, .out = full, .form = form});
    attend(Attention{.queries = query, .rows = &rows, .out = selected, .tokens = tokens, .form = form});
    attend(Attention{.queries = query, .rows = &stored, .out = decoded, .tokens = tokens, .form = form});
    quality.output_error += relative_error(selected.row(0), full.row(0));
    quality.stored_error += relative_error(decoded.row(0), full.row(0));
    ++quality.outputs;
  }
  return quality;
}

/// Counts what caches of the tokens fetched would have spared one head, by running the selections of its steps in order through them.
static void use_caches(const SelectionTask& task, const SelectionRule& rule,
                       std::span<const std::vector<Scored>> chosen, size_t which, SelectionQuality& quality) {
  const size_t per_step = chosen.size() / std::max<size_t>(1, task.visible.size());
  std::vector<SelectionCache> caches(std::begin(kCacheSteps), std::end(kCacheSteps));
  std::vector<uint32_t> fetched;
  for (size_t step = 0; step < task.visible.size(); ++step) {
    fetched.clear();
    const uint64_t at_hand = std::max(
        waiting_at(task, step), rule.beside_of(choice_at(task, rule, step, which), generated_at(task, step)));
    for (const Scored& token : chosen[step * per_step + which])
      if (token.id >= task.sink && token.id < task.visible[step] - at_hand) fetched.push_back(token.id);
    for (size_t i = 0; i < caches.size(); ++i) quality.cache[i].add(caches[i].step(fetched));
  }
}

void SelectionQuality::add(const SelectionQuality& other) {
  count.add(other.count);
  outputs += other.outputs;
  recall += other.recall;
  mass += other.mass;
  output_error += other.output_error;
  stored_error += other.stored_error;
  for (size_t i = 0; i < std::size(cache); ++i) cache[i].add(other.cache[i]);
}

Selections select_tokens(const SelectionTask& task, const SelectionRule& rule) {
  const size_t steps = task.visible.size(), n = task.per_step;
  if (task.queries.rows() != steps * n || task.keys.rows() != task.selector->tokens() ||
      task.keys.rows() != task.values.rows() || task.stored_keys.rows() != task.keys.rows() ||
      task.stored_values.rows() != task.keys.rows() ||
      (!task.waiting.empty() && task.waiting.size() != steps) ||
      (!task.from.empty() && task.from.size() != steps) ||
      (!task.form.sinks.empty() && task.form.sinks.size() != n))
    throw failed("{} queries for {} steps of {}; {} keys, {} values, {} tokens in the index",
                 task.queries.rows(), steps, n, task.keys.rows(), task.values.rows(),
                 task.selector->tokens());
  for (size_t step = 0; step < steps; ++step) {
    if (task.visible[step] > task.keys.rows())
      throw failed("step {} sees {} tokens of {}", step, task.visible[step], task.keys.rows());
    if (from_at(task, step) > task.visible[step])
      throw failed("step {} sees tokens {} to {}", step, from_at(task, step), task.visible[step]);
    if (!task.waiting.empty() && task.waiting[step] > task.visible[step])
      throw failed("step {} sees {} tokens; {} of them wait", step, task.visible[step], task.waiting[step]);
  }
  const size_t per_step = rule.share == Share::each ? n : 1;
  Selections result{std::vector<std::vector<Scored>>(steps * per_step), {}};
  bool is_chosen = false;
  if (task.chooser) {
    std::vector<TokenChoice> choices;
    for (size_t i = 0; i < result.chosen.size(); ++i)
      choices.push_back(choice_at(task, rule, i / per_step, i % per_step));
    is_chosen = can_choose_elsewhere(choices, rule.choosing(), task.sink) &&
                task.chooser(choices, rule.share == Share::max, result.chosen);
  }
  std::vector<SelectionQuality> qualities(steps);
  parallel_each(steps, 1, [&](size_t step) {
    qualities[step] =
        choose_at(task, rule, step, is_chosen, std::span(result.chosen).subspan(step * per_step, per_step));
  });
  for (const SelectionQuality& quality : qualities) result.quality.add(quality);
  for (size_t i = 0; i < per_step; ++i) use_caches(task, rule, result.chosen, i, result.quality);
  return result;
}

// Selection while a model runs

namespace {

/// Choices that are made together, about: their tokens are all held in memory until they are attended to.
constexpr size_t kMaxTogether = 256;

/// Scores by the keys themselves, which are read in place.
class GrowingOracle final : public GrowingSelector {
 public:
  explicit GrowingOracle(MatrixView<const float> all) : all_(all) {}
  void append(MatrixView<const float> keys) override { tokens_ += keys.rows(); }
  size_t tokens() const override { return tokens_; }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override {
    dot_products(queries, all_.rows(0, tokens_), out);
  }

 private:
  MatrixView<const float> all_;
  size_t tokens_ = 0;
};

/// ClusterKV: tokens score as the centroids of their clusters. The prompt is what the document began with;
/// the first tokens, and those that wait for a batch to be full, are always kept.
class GrowingClusters final : public GrowingSelector {
 public:
  /// index: the clusters so far, or an empty one. Clusters of the tokens that are appended are added to it.
  GrowingClusters(const ClusterOptions& options, MatrixView<const float> all, size_t past, uint64_t stream,
                  ClusterIndex& index, Engine* engine)
      : options_(options), all_(all), past_(past), stream_(stream), engine_(engine), index_(index) {}
  void append(MatrixView<const float> keys) override {
    tokens_ += keys.rows();
    if (tokens_ < past_) return;
    const auto ends = next_batches(index_.end(), tokens_, past_, options_);
    if (ends.empty()) return;
    const ClusterTask task{.index = &index_,
                           .keys = all_.rows(index_.end(), ends.back() - index_.end()),
                           .ends = ends,
                           .stream = stream_};
    (void)add_batches({&task, 1}, options_, kSeed, {},
                      engine_ ? engine_->make<KmeansOnDevice>() : KmeansFunction());
  }
  size_t tokens() const override { return tokens_; }
  uint64_t sink() const override { return index_.sink(); }
  uint64_t waiting() const override { return tokens_ - index_.covered(tokens_); }
  /// Until the next batch is full.
  bool is_steady() const override {
    return engine_ && next_batches(index_.end(), tokens_ + 1, past_, options_).empty();
  }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override {
    ClusterSelector(index_, out.cols()).scores(queries, out);
  }
  TokenChooser chooser(size_t choices) const override {
    if (!engine_ || index_.clusters() == 0 || choices < kWorthCopying) return {};
    return engine_->make<ClusterChoice>(index_, tokens_);
  }

 private:
  static constexpr uint64_t kSeed = 0;
  /// Minimum number of choices for which the index is copied to a device: the CPU soon scores a few hundred centroids.
  static constexpr size_t kWorthCopying = 32;
  const ClusterOptions& options_;
  MatrixView<const float> all_;
  size_t past_, tokens_ = 0;
  uint64_t stream_;
  Engine* engine_;
  ClusterIndex& index_;
};

/// Chooses the tokens of each choice, in order of ids. For several choices the selector must have been steady since the first one.
std::vector<std::vector<uint32_t>> choose(const GrowingSelector& selector,
                                          std::span<const TokenChoice> choices, const ChoosingRule& rule,
                                          MatrixView<const float> keys) {
  std::vector<std::vector<Scored>> scored(choices.size());
  const bool elsewhere = can_choose_elsewhere(choices, rule, selector.sink());
  const TokenChooser chooser = elsewhere ? selector.chooser(choices.size()) : TokenChooser();
  if (!chooser || !chooser(choices, rule.share == Share::max, scored))
    for (size_t i = 0; i < choices.size(); ++i) {
      Matrix<float> scores(choices[i].queries.rows(), static_cast<size_t>(choices[i].visible));
      selector.scores(choices[i].queries, scores);
      scored[i] = choose_tokens(choices[i], rule, keys, scores);
    }
  return mapped<std::vector<uint32_t>>(scored, ids_in_order);
}

}  // namespace

/// State that a head of a document keeps from call to call.
struct SelectedAttention::Kept {
  std::unique_ptr<const SignFit> fit;          ///< of signs
  std::unique_ptr<ClusterIndex> clusters;      ///< of clusters
  std::optional<std::vector<uint32_t>> heavy;  ///< tokens, rising
  SelectionCount count;

  /// all: the head's keys so far; past: the number of them that the document began with; sink: first ones in no cluster; stream: that of
  /// the head's random starts.
  std::unique_ptr<GrowingSelector> selector(const SelectionRule& rule, MatrixView<const float> all,
                                            size_t past, uint64_t sink, uint64_t stream, Engine* engine) {
    if (rule.by == SelectBy::oracle) return std::make_unique<GrowingOracle>(all);
    if (rule.by == SelectBy::quest) return std::make_unique<QuestSelector>(all.cols());
    if (rule.by == SelectBy::clusters) {
      if (!clusters) clusters = std::make_unique<ClusterIndex>(all.cols(), sink);
      return std::make_unique<GrowingClusters>(rule.clusters, all, past, stream, *clusters, engine);
    }
    if (!fit) fit = std::make_unique<const SignFit>(SignFit::of(all.rows(0, past)));
    return std::make_unique<SignSelector>(*fit, SignIndex(all.cols()));
  }
};

SelectedAttention::SelectedAttention(const ModelConfig& config, std::vector<SelectionRule> rules,
                                     size_t prefix, const Prefix* observed, Engine* engine,
                                     StoredIndex stored)
    : config_(config),
      rules_(std::move(rules)),
      prefix_(prefix),
      observed_(observed),
      engine_(engine),
      stored_(std::move(stored)),
      kept_(rules_.size() * as_size(config.num_layers) * as_size(config.max_kv_heads())) {
  for (const SelectionRule& rule : rules_) {
    if (std::ranges::find(kStepSelectors, rule.by) == std::end(kStepSelectors) &&
        !(rule.by == SelectBy::codes && stored_))
      throw usage_error("selection by '{}' cannot follow a model; choose from {}", rule.by,
                        fmt::join(kStepSelectors, ", "));
    for (const int layer : rule.dense_layers)
      if (layer < 0 || layer >= config.num_layers)
        throw usage_error("layer {} is to attend to all tokens; the model has layers 0 to {}", layer,
                          config.num_layers - 1);
    if (rule.by == SelectBy::signs && (config.head_dim % 4 != 0 || config.local_head_dim % 4 != 0))
      throw usage_error("selection by signs needs heads of a multiple of 4 dimensions, not {}",
                        config.head_dim);
    if (rule.heavy > 0 && observed && observed->query_tokens.empty())
      throw usage_error("no query says which {} tokens are heavy", rule.heavy);
  }
}

SelectedAttention::~SelectedAttention() = default;

void SelectedAttention::attend(const AttentionRows& rows) {
  const ModelConfig model = config_.of_layer(rows.source);
  parallel_each(as_size(model.num_kv_heads), 1, [&](size_t head) { attend_head(model, rows, head); });
}

SelectionCount SelectedAttention::count(size_t document) const {
  const size_t each = kept_.size() / rules_.size();
  SelectionCount sum;
  for (const Kept& kept : std::span(kept_).subspan(document * each, each)) sum.add(kept.count);
  return sum;
}

void SelectedAttention::attend_head(const ModelConfig& model, const AttentionRows& rows, size_t head) {
  const SelectionRule& rule = rules_.at(rows.document);
  const auto dims = as_size(model.head_dim), value_dims = as_size(model.value_dim()),
             group = as_size(model.group_size());
  const auto window = static_cast<uint64_t>(config_.window.at(as_size(rows.layer)));
  const size_t place = as_size(rows.layer) * as_size(config_.max_kv_heads()) + head;
  Kept& kept = kept_[rows.document * (kept_.size() / rules_.size()) + place];
  const bool dense = rule.is_dense(rows.layer);
  std::unique_ptr<GrowingSelector> selector;
  if (!dense && rule.by == SelectBy::codes) selector = stored_(rows.document, rows.source, head);
  // Tokens before `origin`, which no query sees and codes may have left out, do not count.
  const size_t prefix = std::min(prefix_, rows.key.rows()),
               origin = selector      ? rows.past - selector->tokens()
                        : window == 0 ? 0
                                      : prefix - std::min<uint64_t>(prefix, window);
  const size_t tokens = rows.key.rows() - origin, position = rows.position - origin, past = prefix - origin;
  const auto after = [&](uint64_t token) { return token - std::min<uint64_t>(token, origin); };
  const auto keys = rows.key.columns(head * dims, dims).rows(origin, tokens),
             values = rows.value.columns(head * value_dims, value_dims).rows(origin, tokens);
  const CacheRows cache(keys, values);
  const auto from = [&](uint64_t seen) { return window == 0 ? 0 : seen - std::min(seen, window); };
  // Query heads [q, q + n) of token i that share the head, where their results go, and their scores' form.
  const auto attention_of = [&](size_t i, size_t q, size_t n) {
    const size_t first = head * group + q;
    const auto cap = static_cast<float>(config_.attention_softcap);
    return Attention{.queries = {rows.query.row(i).data() + first * dims, n, dims},
                     .rows = &cache,
                     .out = {rows.out.row(i).data() + first * value_dims, n, value_dims},
                     .form = {cap, rows.sinks.empty() ? rows.sinks : rows.sinks.subspan(first, n)}};
  };
  if (dense) {
    for (size_t i = 0; i < rows.query.rows(); ++i) {
      const uint64_t seen = position + i + 1, first = from(seen);
      const CacheRows visible(keys.rows(first, seen - first), values.rows(first, seen - first));
      Attention all = attention_of(i, 0, group);
      all.rows = &visible;
      kvcodec::attend(all);
    }
    return;
  }
  if (!selector)
    selector =
        kept.selector(rule, keys, past, after(static_cast<uint64_t>(rule.clusters.sink)), place, engine_);
  std::span<const uint32_t> heavy;
  if (rule.heavy > 0) heavy = heavy_tokens(model, kept, rows, head, origin);
  SelectionRule own = rule;
  own.first = after(rule.first);
  selector->append(keys.rows(selector->tokens(), position - selector->tokens()));
  const size_t together = rule.share == Share::each ? 1 : group;  // query heads that share a choice
  for (size_t i = 0; i < rows.query.rows();) {
    std::vector<TokenChoice> choices;
    std::vector<Attention> heads;
    do {
      selector->append(keys.rows(position + i, 1));
      const uint64_t seen = selector->tokens();
      for (size_t q = 0; q < group; q += together) {
        const Attention& asked = heads.emplace_back(attention_of(i, q, together));
        choices.push_back(own.choice({.queries = asked.queries,
                                      .visible = seen,
                                      .sink = selector->sink(),
                                      .heavy = heavy,
                                      .unscored = std::min(selector->waiting(), seen - from(seen)),
                                      .from = from(seen),
                                      .form = asked.form},
                                     seen - past));
      }
      ++i;
    } while (i < rows.query.rows() && choices.size() < kMaxTogether && selector->is_steady());
    const auto chosen = choose(*selector, choices, rule.choosing(), keys);
    for (size_t c = 0; c < choices.size(); ++c) {
      const uint64_t seen = choices[c].visible, beside = own.beside_of(choices[c], seen - past);
      kept.count.add({.selections = 1,
                      .tokens = chosen[c].size() - beside,
                      .visible = seen - choices[c].from - beside,
                      .beside = beside});
      heads[c].tokens = std::span<const uint32_t>(chosen[c]);
      kvcodec::attend(heads[c]);
    }
  }
}

/// The tokens of a head, counted from `origin` on, that the last queries of its group attend to most in the prefix.
std::span<const uint32_t> SelectedAttention::heavy_tokens(const ModelConfig& model, Kept& kept,
                                                          const AttentionRows& rows, size_t head,
                                                          uint64_t origin) const {
  if (!kept.heavy) {
    if (!observed_) throw failed("heavy tokens without the queries that say which they are");
    const auto dims = as_size(model.head_dim), group = as_size(model.group_size());
    AttentionSums sums = AttentionSums::of_head(observed_->queries.at(as_size(rows.layer)),
                                                observed_->query_tokens, head, group, dims);
    sums.set_form({.cap = static_cast<float>(config_.attention_softcap),
                   .sinks = rows.sinks.empty() ? rows.sinks : rows.sinks.subspan(head * group, group)},
                  static_cast<uint64_t>(config_.window.at(as_size(rows.layer))));
    const auto first =
        rows.key.columns(head * dims, dims).rows(origin, std::min(prefix_, rows.key.rows()) - origin);
    sums.first_pass(origin, first);
    sums.second_pass(origin, first);
    kept.heavy = heaviest_tokens(std::span(sums.weights()).subspan(origin), rules_.at(rows.document).heavy);
  }
  return *kept.heavy;
}

}  // namespace kvcodec
