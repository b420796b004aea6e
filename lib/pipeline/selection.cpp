#include "lib/pipeline/selection.hpp"

#include <algorithm>
#include <cmath>

#include "lib/attention/attention.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/metrics/selection.hpp"

namespace kvcodec {
namespace {

/// One step: selections for its query heads, and their quality.
class Step {
 public:
  Step(const SelectionTask& task, const SelectionRule& rule, size_t step)
      : task_(task),
        rule_(rule),
        queries_(task.queries.rows(step * task.per_step, task.per_step)),
        visible_(task.visible[step]),
        waiting_(task.waiting.empty() ? 0 : task.waiting[step]) {}

  /// What is to be chosen, the query heads together or each for itself.
  TokenChoice choice(size_t which) const {
    return {.queries = own(queries_, which),
            .visible = visible_,
            .budget = rule_.tokens_of(visible_),
            .newest = rule_.newest_of(waiting_),
            .sink = std::max(rule_.first, task_.sink),
            .heavy = task_.heavy,
            .unscored = waiting_};
  }

  /// Chooses tokens, unless is_chosen says that `chosen` holds them already, and adds their quality.
  void run(bool is_chosen, std::span<std::vector<Scored>> chosen, SelectionQuality& quality) const {
    const size_t n = queries_.rows(), all = task_.selector->tokens();
    Matrix<float> scores(is_chosen ? 0 : n, all), exact(n, visible_);
    if (!is_chosen) task_.selector->scores(queries_, scores);
    const CacheRows rows(task_.keys.rows(0, visible_), task_.values.rows(0, visible_));
    const CacheRows stored(task_.stored_keys.rows(0, visible_), task_.stored_values.rows(0, visible_));
    dot_products(queries_, rows, exact);
    Matrix<float> products = exact;
    const bool each = rule_.share == Share::each;
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (!is_chosen) chosen[i] = choose_tokens(choice(i), rule_.choosing(), stored, own(scores.view(), i));
      const TokenChoice best{.queries = own(queries_, i), .visible = visible_, .budget = chosen[i].size()};
      const auto wanted =
          ids_in_order(choose_tokens(best, {.share = rule_.share}, rows, own(products.view(), i)));
      quality.recall += selection_recall(ids_in_order(chosen[i]), wanted);
      quality.tokens += chosen[i].size();
      quality.visible += visible_;
      ++quality.selections;
    }
    for (size_t i = 0; i < n; ++i) judge(i, rows, exact.row(i), ids_in_order(chosen[each ? i : 0]), quality);
  }

 private:
  /// The rows that one choice is about.
  template <class View>
  View own(View of_all, size_t which) const {
    return rule_.share == Share::each ? of_all.rows(which, 1) : of_all;
  }

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
  const SelectionRule& rule_;
  MatrixView<const float> queries_;
  uint64_t visible_, waiting_;
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

Selections select_tokens(const SelectionTask& task, const SelectionRule& rule) {
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
  const size_t per_step = rule.share == Share::each ? n : 1;
  Selections result{std::vector<std::vector<Scored>>(steps * per_step), {}};
  bool is_chosen = false;
  if (task.chooser && can_choose_elsewhere(rule.choosing()) && task.heavy.empty() &&
      rule.first <= task.sink) {
    std::vector<TokenChoice> choices;
    for (size_t i = 0; i < result.chosen.size(); ++i)
      choices.push_back(Step(task, rule, i / per_step).choice(i % per_step));
    is_chosen = task.chooser(choices, rule.share == Share::max, result.chosen);
  }
  std::vector<SelectionQuality> qualities(steps);
  parallel_for(steps, 1, [&](size_t begin, size_t end, int) {
    for (size_t step = begin; step < end; ++step)
      Step(task, rule, step)
          .run(is_chosen, std::span(result.chosen).subspan(step * per_step, per_step), qualities[step]);
  });
  for (const SelectionQuality& quality : qualities) result.quality.add(quality);
  for (size_t i = 0; i < per_step; ++i) use_caches(task, result.chosen, per_step, i, result.quality);
  return result;
}

}  // namespace kvcodec
