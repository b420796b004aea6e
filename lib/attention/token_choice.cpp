#include "lib/attention/token_choice.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lib/attention/attention.hpp"
#include "lib/attention/cluster_selector.hpp"
#include "lib/core/error.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// What is chosen whatever it scores, rising.
std::vector<uint32_t> chosen_anyway(const TokenChoice& choice, uint64_t budget) {
  const KeptAnyway kept = kept_anyway(choice.visible, choice.sink, choice.newest, budget);
  const uint64_t newest_from = choice.visible - kept.newest;
  std::vector<uint32_t> ids;
  const auto add = [&](uint64_t token) { ids.push_back(static_cast<uint32_t>(token)); };
  for (uint64_t token = 0; token < kept.first; ++token) add(token);
  for (uint64_t token = newest_from; token < choice.visible; ++token) add(token);
  for (const uint32_t token : choice.heavy)
    if (ids.size() < budget && token >= kept.first && token < newest_from) add(token);
  std::ranges::sort(ids);
  return ids;
}

/// Tokens without a score that are not chosen anyway, rising.
std::vector<uint32_t> unscored_tokens(const TokenChoice& choice, std::span<const uint32_t> anyway) {
  std::vector<uint32_t> ids;
  for (uint64_t token = choice.visible - std::min(choice.unscored, choice.visible); token < choice.visible;
       ++token)
    if (!std::ranges::binary_search(anyway, token)) ids.push_back(static_cast<uint32_t>(token));
  return ids;
}

/// Scores of one choice's query heads, which become products where these are known.
class Scores {
 public:
  Scores(const TokenChoice& choice, Share share, const RowSource& keys, MatrixView<float> scores)
      : choice_(choice), share_(share), keys_(keys), scores_(scores) {}

  void multiply(std::span<const uint32_t> tokens) {
    if (tokens.empty()) return;
    const size_t n = choice_.queries.rows();
    Matrix<float> products(n, tokens.size());
    dot_products(choice_.queries, keys_, tokens, products);
    for (size_t q = 0; q < n; ++q)
      for (size_t i = 0; i < tokens.size(); ++i) scores_(q, tokens[i]) = products(q, i);
  }

  /// One score for each token.
  std::vector<float> shared() const { return share_ == Share::weight ? mean_weights() : shared_scores(); }

  /// Softmax weights, the mean of the query heads.
  std::vector<float> mean_weights() const {
    const auto visible = static_cast<size_t>(choice_.visible);
    const float scale = 1 / std::sqrt(static_cast<float>(keys_.dims()));
    std::vector<float> mean(visible), weights(visible);
    for (size_t q = 0; q < scores_.rows(); ++q) {
      const std::span<const float> row = std::as_const(scores_).row(q).first(visible);
      const float largest = *std::ranges::max_element(row);
      for (size_t t = 0; t < visible; ++t) weights[t] = (row[t] - largest) * scale;
      exp_nonpositive(weights);
      const auto share = static_cast<float>(1 / (sum(weights) * static_cast<double>(scores_.rows())));
      for (size_t t = 0; t < visible; ++t) mean[t] += weights[t] * share;
    }
    return mean;
  }

 private:
  std::vector<float> shared_scores() const {
    const auto visible = static_cast<size_t>(choice_.visible);
    const std::span<const float> first = std::as_const(scores_).row(0).first(visible);
    std::vector<float> shared(first.begin(), first.end());
    for (size_t q = 1; q < scores_.rows(); ++q)
      for (size_t t = 0; t < visible; ++t)
        shared[t] = share_ == Share::max ? std::max(shared[t], scores_(q, t)) : shared[t] + scores_(q, t);
    if (share_ == Share::mean)
      for (float& score : shared) score /= static_cast<float>(scores_.rows());
    return shared;
  }

  const TokenChoice& choice_;
  Share share_;
  const RowSource& keys_;
  MatrixView<float> scores_;
};

/// The `count` best of those that are not chosen anyway.
std::vector<Scored> best_others(std::vector<float> shared, std::span<const uint32_t> anyway, uint64_t count) {
  for (const uint32_t token : anyway) shared[token] = kNever;
  return top_k(shared, std::min<uint64_t>(count, shared.size() - anyway.size()));
}

/// Leaves out the last ones, as soon as those before have that share of the weights.
void keep_mass(std::vector<Scored>& others, std::span<const float> weights, std::span<const uint32_t> anyway,
               double mass) {
  double covered = 0;
  for (const uint32_t token : anyway) covered += static_cast<double>(weights[token]);
  size_t kept = 0;
  while (kept < others.size() && covered < mass) covered += static_cast<double>(weights[others[kept++].id]);
  others.resize(kept);
}

}  // namespace

std::vector<Scored> choose_tokens(const TokenChoice& choice, const ChoosingRule& rule, const RowSource& keys,
                                  MatrixView<float> scores) {
  if (choice.queries.rows() == 0 || scores.rows() != choice.queries.rows() ||
      scores.cols() < choice.visible || keys.tokens() < choice.visible ||
      choice.queries.cols() != keys.dims())
    throw failed("queries ({}, {}) and scores ({}, {}) for {} of {} keys of {} dimensions",
                 choice.queries.rows(), choice.queries.cols(), scores.rows(), scores.cols(), choice.visible,
                 keys.tokens(), keys.dims());
  if (rule.mass > 0 && rule.share != Share::weight && rule.share != Share::each)
    throw failed("a share of the weights for choices by {}", rule.share);
  const uint64_t budget = std::min(choice.budget, choice.visible);
  if (budget == 0) return {};
  const std::vector<uint32_t> anyway = chosen_anyway(choice, budget);
  const uint64_t open = budget - anyway.size();
  Scores known(choice, rule.share, keys, scores);
  if (open > 0) known.multiply(unscored_tokens(choice, anyway));
  if (rule.share == Share::weight || rule.mass > 0) {
    // Where nothing else is chosen its scores do not count. Selectors give infinite ones to what they keep themselves.
    if (open == 0)
      for (size_t q = 0; q < scores.rows(); ++q)
        std::ranges::fill(scores.row(q).first(choice.visible), kNever);
    // Scores of tokens that are chosen anyway need not be products, which weights come from.
    known.multiply(anyway);
  }
  std::vector<float> shared = known.shared();
  const bool decides_twice = rule.candidates > 1 && open > 0;
  std::vector<Scored> others =
      best_others(shared, anyway, decides_twice ? budget * rule.candidates - anyway.size() : open);
  if (decides_twice) {
    std::vector<uint32_t> candidates(others.size());
    std::ranges::transform(others, candidates.begin(), &Scored::id);
    std::ranges::sort(candidates);
    known.multiply(candidates);
    shared = known.shared();
    others.clear();
    for (const uint32_t token : candidates) others.push_back({shared[token], token});
    keep_top(others, open);
  }
  if (rule.mass > 0)
    keep_mass(others, rule.share == Share::weight ? shared : known.mean_weights(), anyway, rule.mass);
  for (const uint32_t token : anyway) others.push_back({shared[token], token});
  rank(others);
  return others;
}

}  // namespace kvcodec
