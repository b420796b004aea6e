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
    for (size_t q = 0; q < n; ++q) {
      const double others =
          softmax_.empty() ? 0 : softmax_[q].total - weights_of(q, tokens, softmax_[q].largest);
      for (size_t i = 0; i < tokens.size(); ++i) scores_(q, tokens[i]) = products(q, i);
      if (!softmax_.empty()) softmax_[q] = with_tokens(q, tokens, softmax_[q], others);
    }
  }

  /// One score for each token.
  std::vector<float> shared() { return share_ == Share::weight ? mean_weights() : shared_scores(); }
  /// The same of these tokens.
  std::vector<float> shared(std::span<const uint32_t> tokens) const {
    return share_ == Share::weight ? mean_weights(tokens) : shared_scores(tokens);
  }

  /// Softmax weights, the mean of the query heads.
  std::vector<float> mean_weights() {
    std::vector<float> mean(static_cast<size_t>(choice_.visible)), weights;
    softmax_.clear();
    softmax_.reserve(scores_.rows());
    for (size_t q = 0; q < scores_.rows(); ++q) {
      softmax_.push_back(softmax_of(q, &weights));
      const float share = share_of(softmax_.back());
      for (size_t t = 0; t < mean.size(); ++t) mean[t] += weights[t] * share;
    }
    return mean;
  }

  /// The same of these tokens; the weights of all were asked for before.
  std::vector<float> mean_weights(std::span<const uint32_t> tokens) const {
    std::vector<float> mean(tokens.size()), weights;
    for (size_t q = 0; q < scores_.rows(); ++q) {
      (void)weights_of(q, tokens, softmax_[q].largest, &weights);
      const float share = share_of(softmax_[q]);
      for (size_t i = 0; i < tokens.size(); ++i) mean[i] += weights[i] * share;
    }
    return mean;
  }

 private:
  /// A softmax of which less is left after products came in is computed anew.
  static constexpr double kLeastKept = 1e-4;

  /// What the weights of a query head are relative to.
  struct Softmax {
    float largest;  ///< not less than any score
    double total;   ///< of exp(score - largest)
  };

  float share_of(const Softmax& softmax) const {
    return static_cast<float>(1 / (softmax.total * static_cast<double>(scores_.rows())));
  }

  /// The sum of exp(score - largest) over these tokens, and each of them.
  double weights_of(size_t q, std::span<const uint32_t> tokens, float largest,
                    std::vector<float>* each = nullptr) const {
    std::vector<float> own;
    std::vector<float>& weights = each ? *each : own;
    weights.resize(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) weights[i] = (scores_(q, tokens[i]) - largest) * scale_;
    exp_nonpositive(weights);
    return sum(weights);
  }

  /// The softmax over all tokens from that before some of them changed. others: the total without these.
  Softmax with_tokens(size_t q, std::span<const uint32_t> tokens, const Softmax& before,
                      double others) const {
    float largest = before.largest;
    for (const uint32_t token : tokens) largest = std::max(largest, scores_(q, token));
    const double shrunk =
        others * std::exp(static_cast<double>(before.largest - largest) * static_cast<double>(scale_));
    const double total = shrunk + weights_of(q, tokens, largest);
    // Where these tokens were nearly all of it, what is left of the difference is rounding.
    return total > kLeastKept * before.total ? Softmax{largest, total} : softmax_of(q);
  }
  Softmax softmax_of(size_t q, std::vector<float>* each = nullptr) const {
    const auto visible = static_cast<size_t>(choice_.visible);
    const std::span<const float> row = std::as_const(scores_).row(q).first(visible);
    const float largest = *std::ranges::max_element(row);
    std::vector<float> own;
    std::vector<float>& weights = each ? *each : own;
    weights.resize(visible);
    for (size_t t = 0; t < visible; ++t) weights[t] = (row[t] - largest) * scale_;
    exp_nonpositive(weights);
    return {largest, sum(weights)};
  }

  float shared_score(size_t token) const {
    float shared = scores_(0, token);
    for (size_t q = 1; q < scores_.rows(); ++q)
      shared = share_ == Share::max ? std::max(shared, scores_(q, token)) : shared + scores_(q, token);
    return shared;
  }
  std::vector<float> shared_scores() const {
    std::vector<float> shared(static_cast<size_t>(choice_.visible));
    for (size_t t = 0; t < shared.size(); ++t) shared[t] = shared_score(t);
    return shared;
  }
  std::vector<float> shared_scores(std::span<const uint32_t> tokens) const {
    std::vector<float> shared(tokens.size());
    std::ranges::transform(tokens, shared.begin(), [&](uint32_t token) { return shared_score(token); });
    return shared;
  }

  const TokenChoice& choice_;
  Share share_;
  const RowSource& keys_;
  MatrixView<float> scores_;
  const float scale_ = 1 / std::sqrt(static_cast<float>(keys_.dims()));
  std::vector<Softmax> softmax_;  // of each query head, once weights were asked for
};

/// The `count` best of those that are not chosen anyway.
std::vector<Scored> best_others(std::vector<float> shared, std::span<const uint32_t> anyway, uint64_t count) {
  for (const uint32_t token : anyway) shared[token] = kNever;
  return top_k(shared, std::min<uint64_t>(count, shared.size() - anyway.size()));
}

/// Leaves out the last ones, as soon as those before, and those that are chosen anyway, have that share of the weights.
void keep_mass(std::vector<Scored>& others, std::span<const uint32_t> anyway, const Scores& known,
               double mass) {
  std::vector<uint32_t> ids(others.size());
  std::ranges::transform(others, ids.begin(), &Scored::id);
  double covered = 0;
  for (const float weight : known.mean_weights(anyway)) covered += static_cast<double>(weight);
  const std::vector<float> weights = known.mean_weights(ids);
  size_t kept = 0;
  while (kept < others.size() && covered < mass) covered += static_cast<double>(weights[kept++]);
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
  const bool decides_twice = rule.candidates > 1 && open > 0;
  std::vector<float> shared = known.shared();
  std::vector<float> of_anyway(anyway.size());
  std::ranges::transform(anyway, of_anyway.begin(), [&](uint32_t token) { return shared[token]; });
  std::vector<Scored> others =
      best_others(std::move(shared), anyway, decides_twice ? budget * rule.candidates - anyway.size() : open);
  if (decides_twice) {
    const std::vector<uint32_t> candidates = ids_in_order(others);
    known.multiply(candidates);
    const std::vector<float> decisive = known.shared(candidates);
    for (size_t i = 0; i < candidates.size(); ++i) others[i] = {decisive[i], candidates[i]};
    keep_top(others, open);
    of_anyway = known.shared(anyway);
  }
  if (rule.mass > 0) {
    if (rule.share != Share::weight) (void)known.mean_weights();
    keep_mass(others, anyway, known, rule.mass);
  }
  for (size_t i = 0; i < anyway.size(); ++i) others.push_back({of_anyway[i], anyway[i]});
  rank(others);
  return others;
}

}  // namespace kvcodec
