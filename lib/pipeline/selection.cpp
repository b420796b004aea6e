#include "lib/pipeline/selection.hpp"

#include <algorithm>
#include <cmath>

#include "lib/attention/attention.hpp"
#include "lib/attention/cluster_selector.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/metrics/selection.hpp"

namespace kvcodec {
namespace {

/// Scores of one step's query heads, (n, all tokens), brought to one row of the visible ones.
std::vector<float> combined(MatrixView<const float> scores, size_t visible, Share share) {
  std::vector<float> result(scores.row(0).begin(), scores.row(0).begin() + static_cast<ptrdiff_t>(visible));
  for (size_t i = 1; i < scores.rows(); ++i)
    for (size_t t = 0; t < visible; ++t)
      result[t] = share == Share::max ? std::max(result[t], scores(i, t)) : result[t] + scores(i, t);
  return result;
}

/// The `budget` best of the visible tokens, those that are kept anyway before all others.
std::vector<Scored> best(std::span<const float> scores, uint64_t budget, uint64_t sink, uint64_t newest) {
  const KeptAnyway kept = kept_anyway(scores.size(), sink, newest, budget);
  const size_t others_end = scores.size() - kept.newest;
  std::vector<Scored> chosen;
  const auto keep = [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) chosen.push_back({scores[t], static_cast<uint32_t>(t)});
  };
  keep(0, kept.first);
  keep(others_end, scores.size());
  const auto others = scores.subspan(kept.first, others_end - kept.first);
  for (const Scored& token : top_k(others, std::min<size_t>(budget - chosen.size(), others.size())))
    chosen.push_back({token.score, token.id + static_cast<uint32_t>(kept.first)});
  rank(chosen);
  return chosen;
}

/// One step: selections for its query heads, and their quality.
class Step {
 public:
  Step(const SelectionTask& task, const SelectionOptions& options, size_t step)
      : task_(task),
        options_(options),
        queries_(task.queries.rows(step * task.per_step, task.per_step)),
        visible_(task.visible[step]),
        budget_(options.tokens_of(visible_)),
        newest_(
            std::max(static_cast<uint64_t>(options.newest), task.waiting.empty() ? 0 : task.waiting[step])) {}

  /// What is to be chosen, the query heads together or each for itself.
  TokenChoice choice(size_t which) const {
    const bool each = options_.share == Share::each;
    return {each ? queries_.rows(which, 1) : queries_, visible_, budget_, newest_};
  }

  /// is_chosen: `chosen` is there already.
  void run(bool is_chosen, std::span<std::vector<Scored>> chosen, SelectionQuality& quality) const {
    const size_t n = queries_.rows(), all = task_.selector->tokens();
    Matrix<float> scores(is_chosen ? 0 : n, all), exact(n, visible_);
    if (!is_chosen) task_.selector->scores(queries_, scores);
    const CacheRows rows(task_.keys.rows(0, visible_), task_.values.rows(0, visible_));
    dot_products(queries_, rows, exact);
    const bool each = options_.share == Share::each;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const auto own = [&](MatrixView<const float> of_all) { return each ? of_all.rows(i, 1) : of_all; };
      if (!is_chosen)
        chosen[i] = best(combined(own(scores), visible_, options_.share), budget_, task_.sink, newest_);
      const auto wanted = ids_in_order(best(combined(own(exact), visible_, options_.share), budget_, 0, 0));
      quality.recall += selection_recall(ids_in_order(chosen[i]), wanted);
      quality.tokens += chosen[i].size();
      quality.visible += visible_;
      ++quality.selections;
    }
    for (size_t i = 0; i < n; ++i) judge(i, rows, exact.row(i), ids_in_order(chosen[each ? i : 0]), quality);
  }

 private:
  void judge(size_t query, const CacheRows& rows, std::span<float> products, const std::vector<uint32_t>& ids,
             SelectionQuality& quality) const {
    const float scale = 1 / std::sqrt(static_cast<float>(task_.keys.cols()));
    for (float& product : products) product *= scale;
    quality.mass += mass_covered(products, ids);
    Matrix<float> full(1, task_.keys.cols()), selected = full, stored = full;
    const auto own = queries_.rows(query, 1);
    const std::span<const uint32_t> chosen(ids);
    const CacheRows stored_rows(task_.stored_keys.rows(0, visible_), task_.stored_values.rows(0, visible_));
    attend(Attention{.queries = own, .parts = {{.rows = &rows}}, .out = full});
    attend(Attention{.queries = own, .parts = {{.rows = &rows, .tokens = chosen}}, .out = selected});
    attend(Attention{.queries = own, .parts = {{.rows = &stored_rows, .tokens = chosen}}, .out = stored});
    quality.output_error += relative_error(selected.row(0), full.row(0));
    quality.stored_error += relative_error(stored.row(0), full.row(0));
    ++quality.outputs;
  }

  const SelectionTask& task_;
  const SelectionOptions& options_;
  MatrixView<const float> queries_;
  uint64_t visible_, budget_, newest_;
};

/// What caches of one head would have spared: the selections of its steps in order.
void use_caches(const SelectionTask& task, std::span<const std::vector<Scored>> chosen, size_t per_step,
                size_t which, SelectionQuality& quality) {
  std::vector<SelectionCache> caches(std::begin(kCacheSteps), std::end(kCacheSteps));
  std::vector<uint32_t> fetched;
  for (size_t step = 0; step < task.visible.size(); ++step) {
    const uint64_t waiting = task.waiting.empty() ? 0 : task.waiting[step];
    fetched.clear();
    for (const Scored& token : chosen[step * per_step + which])
      if (token.id >= task.sink && token.id < task.visible[step] - waiting) fetched.push_back(token.id);
    for (size_t i = 0; i < caches.size(); ++i) quality.cache[i].add(caches[i].step(fetched));
  }
}

}  // namespace

std::vector<Scored> choose_tokens(MatrixView<const float> scores, size_t visible, uint64_t budget,
                                  uint64_t sink, uint64_t newest, Share share) {
  return best(combined(scores, visible, share), std::min<uint64_t>(budget, visible), sink, newest);
}

std::vector<OptionField> SelectionOptions::fields() {
  return {
      {"by",
       "what scores the tokens: the index in the codes, its signs alone, the clusters of --index, Quest's "
       "bounds over pages of 16 tokens, or the true products",
       &by,
       {},
       {},
       {kNamesOf<SelectBy>.begin() + 1, kNamesOf<SelectBy>.end()}},  // one that chooses
      {"share",
       "one selection for the query heads that share a key/value head, by their largest or mean score, "
       "or one for "
       "each",
       &share},
      {"budget", "tokens to select for each query; 0: by --ratio", &budget, 0, 1e9},
      {"ratio", "tokens to select, as a share of those that the query sees", &ratio, 0, 1},
      {"newest", "newest tokens that are always selected, within the budget", &newest, 0, 1e9}};
}

void SelectionOptions::check() const {
  if (budget == 0 && ratio == 0)
    throw usage_error("--budget and --ratio are both 0; one must say how many tokens");
}

uint64_t SelectionOptions::tokens_of(uint64_t visible) const {
  if (budget > 0) return std::min(static_cast<uint64_t>(budget), visible);
  return std::min(visible, static_cast<uint64_t>(std::ceil(ratio * static_cast<double>(visible))));
}

void SelectionQuality::add(const SelectionQuality& other) {
  selections += other.selections;
  outputs += other.outputs;
  tokens += other.tokens;
  visible += other.visible;
  recall += other.recall;
  mass += other.mass;
  output_error += other.output_error;
  stored_error += other.stored_error;
  for (size_t i = 0; i < std::size(cache); ++i) cache[i].add(other.cache[i]);
}

Selections select_tokens(const SelectionTask& task, const SelectionOptions& options) {
  const size_t steps = task.visible.size(), n = task.per_step;
  if (task.queries.rows() != steps * n || task.keys.rows() != task.selector->tokens() ||
      task.keys.rows() != task.values.rows() || task.stored_keys.rows() != task.keys.rows() ||
      task.stored_values.rows() != task.keys.rows() ||
      (!task.waiting.empty() && task.waiting.size() != steps))
    throw failed("{} queries for {} steps of {}; {} keys, {} values, {} tokens in the index",
                 task.queries.rows(), steps, n, task.keys.rows(), task.values.rows(),
                 task.selector->tokens());
  for (size_t step = 0; step < steps; ++step) {
    if (task.visible[step] > task.keys.rows())
      throw failed("step {} sees {} tokens of {}", step, task.visible[step], task.keys.rows());
    if (!task.waiting.empty() && task.waiting[step] > task.visible[step])
      throw failed("step {} sees {} tokens; {} of them wait", step, task.visible[step], task.waiting[step]);
  }
  const size_t per_step = options.share == Share::each ? n : 1;
  Selections result{std::vector<std::vector<Scored>>(steps * per_step), {}};
  bool is_chosen = false;
  if (task.chooser) {
    std::vector<TokenChoice> choices;
    for (size_t i = 0; i < result.chosen.size(); ++i)
      choices.push_back(Step(task, options, i / per_step).choice(i % per_step));
    is_chosen = task.chooser(choices, options.share == Share::max, result.chosen);
  }
  std::vector<SelectionQuality> qualities(steps);
  parallel_for(steps, 1, [&](size_t begin, size_t end, int) {
    for (size_t step = begin; step < end; ++step)
      Step(task, options, step)
          .run(is_chosen, std::span(result.chosen).subspan(step * per_step, per_step), qualities[step]);
  });
  for (const SelectionQuality& quality : qualities) result.quality.add(quality);
  for (size_t i = 0; i < per_step; ++i) use_caches(task, result.chosen, per_step, i, result.quality);
  return result;
}

}  // namespace kvcodec
