#include "lib/attention/selector.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Scores of waiting tokens are multiples of it, from 1 to kMaxWaiting: above kLargestNorm squared, and of
/// so few bits that sums over 16 queries are exact, and finite over 127.
constexpr float kWaitingUnit = 0x1p100f;
constexpr uint64_t kMaxWaiting = uint64_t{1} << 20;
static_assert(double{kWaitingUnit} > kLargestNorm * kLargestNorm);

static Matrix<float> centred(MatrixView<const float> keys, std::span<const float> center) {
  if (keys.cols() != center.size()) throw failed("keys of {} dimensions, not {}", keys.cols(), center.size());
  Matrix<float> rows(keys.rows(), keys.cols());
  for (size_t t = 0; t < rows.rows(); ++t)
    for (size_t c = 0; c < rows.cols(); ++c) rows(t, c) = keys(t, c) - center[c];
  return rows;
}

/// Codes of one head.
static Matrix<uint8_t> sign_codes(const Matrix<float>& centred_rows) {
  Matrix<uint8_t> codes(centred_rows.rows(), sign_row_bytes(centred_rows.cols()));
  encode_signs(centred_rows, 1, codes);
  return codes;
}

/// Tokens that are chosen whatever they score, rising.
static std::vector<uint32_t> chosen_anyway(const TokenChoice& choice, uint64_t budget) {
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
static std::vector<uint32_t> unscored_tokens(const TokenChoice& choice, std::span<const uint32_t> anyway) {
  std::vector<uint32_t> ids;
  for (uint64_t token = choice.visible - std::min(choice.unscored, choice.visible); token < choice.visible;
       ++token)
    if (!std::ranges::binary_search(anyway, token)) ids.push_back(static_cast<uint32_t>(token));
  return ids;
}

/// Replaces scores of these tokens by products.
static void multiply(const TokenChoice& choice, MatrixView<const float> keys,
                     std::span<const uint32_t> tokens, MatrixView<float> scores) {
  if (tokens.empty()) return;
  Matrix<float> products(scores.rows(), tokens.size());
  dot_products(choice.queries, keys, tokens, products);
  for (size_t q = 0; q < scores.rows(); ++q)
    for (size_t i = 0; i < tokens.size(); ++i) scores(q, tokens[i]) = products(q, i);
}

/// Softmax weights of the tokens, the mean of the query heads.
static std::vector<float> mean_weights(MatrixView<const float> scores, const ScoreForm& form, size_t dims) {
  const float scale = 1 / std::sqrt(static_cast<float>(dims));
  std::vector<float> mean(scores.cols()), weights(scores.cols());
  for (size_t q = 0; q < scores.rows(); ++q) {
    const std::span<const float> row = scores.row(q);
    for (size_t t = 0; t < row.size(); ++t) weights[t] = row[t] * scale;
    if (form.cap > 0) soft_cap(weights, form.cap);
    float largest = *std::ranges::max_element(weights), beside = 0;
    if (!form.sinks.empty()) {
      largest = std::max(largest, form.sinks[q]);
      beside = form.sinks[q] - largest;
      exp_nonpositive({&beside, 1});
    }
    // Those that stand for no score have no weight, whatever the cap.
    for (size_t t = 0; t < row.size(); ++t) weights[t] = row[t] == -kInfinity ? row[t] : weights[t] - largest;
    exp_nonpositive(weights);
    const double all = sum(weights) + static_cast<double>(beside);
    const auto share = static_cast<float>(1 / (all * static_cast<double>(scores.rows())));
    for (size_t t = 0; t < row.size(); ++t) mean[t] += weights[t] * share;
  }
  return mean;
}

/// One score for each token; with Share::mean the sum of its scores, since a division could make two of them equal.
static std::vector<float> shared_scores(MatrixView<const float> scores, Share share, const ScoreForm& form,
                                        size_t dims) {
  if (share == Share::weight) return mean_weights(scores, form, dims);
  std::vector<float> shared(scores.row(0).begin(), scores.row(0).end());
  for (size_t q = 1; q < scores.rows(); ++q)
    for (size_t t = 0; t < shared.size(); ++t)
      shared[t] = share == Share::max ? std::max(shared[t], scores(q, t)) : shared[t] + scores(q, t);
  return shared;
}

/// A choice of tokens from `from` on as one of a document that begins there. heavy: room for its tokens.
static TokenChoice from_there(const TokenChoice& choice, std::vector<uint32_t>& heavy) {
  TokenChoice own = choice;
  own.from = 0;
  own.visible -= choice.from;
  own.sink -= std::min(choice.sink, choice.from);
  for (const uint32_t token : choice.heavy)
    if (token >= choice.from) heavy.push_back(token - static_cast<uint32_t>(choice.from));
  own.heavy = heavy;
  return own;
}

bool can_choose_elsewhere(std::span<const TokenChoice> choices, const ChoosingRule& rule, uint64_t sink) {
  return rule.share != Share::weight && rule.candidates <= 1 && rule.mass == 0 &&
         std::ranges::all_of(choices, [&](const TokenChoice& choice) {
           return choice.newest >= choice.unscored && choice.sink == sink && choice.heavy.empty() &&
                  choice.from == 0;
         });
}

float waiting_score(uint64_t tokens, uint64_t token) {
  const uint64_t newer = tokens - 1 - token;
  return kWaitingUnit * static_cast<float>(kMaxWaiting - std::min(newer, kMaxWaiting - 1));
}

std::vector<uint32_t> ids_in_order(std::span<const Scored> selected) {
  std::vector<uint32_t> ids(selected.size());
  std::ranges::transform(selected, ids.begin(), &Scored::id);
  if (!std::ranges::is_sorted(ids)) std::ranges::sort(ids);
  return ids;
}

std::vector<Scored> choose_tokens(const TokenChoice& choice, const ChoosingRule& rule,
                                  MatrixView<const float> keys, MatrixView<float> scores) {
  if (choice.queries.rows() == 0 || scores.rows() != choice.queries.rows() ||
      scores.cols() < choice.visible || keys.rows() < choice.visible || choice.from > choice.visible ||
      choice.queries.cols() != keys.cols())
    throw failed("queries ({}, {}) and scores ({}, {}) for {} of {} keys of {} dimensions",
                 choice.queries.rows(), choice.queries.cols(), scores.rows(), scores.cols(), choice.visible,
                 keys.rows(), keys.cols());
  if (rule.mass > 0 && rule.share != Share::weight && rule.share != Share::each)
    throw failed("a share of the weights for choices by {}", rule.share);
  if (const auto from = static_cast<size_t>(choice.from); from > 0) {
    std::vector<uint32_t> heavy;
    const TokenChoice own = from_there(choice, heavy);
    const auto seen = static_cast<size_t>(own.visible);
    auto chosen = choose_tokens(own, rule, keys.rows(from, seen), scores.columns(from, seen));
    for (Scored& token : chosen) token.id += static_cast<uint32_t>(from);
    return chosen;
  }
  const uint64_t budget = std::min(choice.budget, choice.visible);
  if (budget == 0) return {};
  scores = scores.columns(0, static_cast<size_t>(choice.visible));
  const std::vector<uint32_t> anyway = chosen_anyway(choice, budget);
  const uint64_t open = budget - anyway.size();
  if (open > 0) multiply(choice, keys, unscored_tokens(choice, anyway), scores);
  if (rule.share == Share::weight || rule.mass > 0) {
    // If nothing else is chosen its scores do not count. Selectors give infinite ones to what they keep themselves.
    if (open == 0)
      for (size_t q = 0; q < scores.rows(); ++q) std::ranges::fill(scores.row(q), -kInfinity);
    // Scores of tokens that are chosen anyway need not be products, which weights come from.
    multiply(choice, keys, anyway, scores);
  }
  std::vector<float> shared = shared_scores(scores, rule.share, choice.form, keys.cols()),
                     open_to_choice = shared;
  for (const uint32_t token : anyway) open_to_choice[token] = -kInfinity;
  const bool decides_twice = rule.candidates > 1 && open > 0;
  const uint64_t best = decides_twice ? budget * rule.candidates - anyway.size() : open;
  std::vector<Scored> others =
      top_k(open_to_choice, std::min<uint64_t>(best, choice.visible - anyway.size()));
  if (decides_twice) {
    const std::vector<uint32_t> candidates = ids_in_order(others);
    multiply(choice, keys, candidates, scores);
    shared = shared_scores(scores, rule.share, choice.form, keys.cols());
    others.clear();
    for (const uint32_t token : candidates) others.push_back({shared[token], token});
    keep_top(others, open);
  }
  if (rule.mass > 0) {  // the last ones are left out, as soon as those before have that share of the weights
    const std::vector<float> weights =
        rule.share == Share::weight ? shared : mean_weights(scores, choice.form, keys.cols());
    double covered = 0;
    for (const uint32_t token : anyway) covered += static_cast<double>(weights[token]);
    size_t kept = 0;
    while (kept < others.size() && covered < rule.mass)
      covered += static_cast<double>(weights[others[kept++].id]);
    others.resize(kept);
  }
  for (const uint32_t token : anyway) others.push_back({shared[token], token});
  rank(others);
  if (rule.share == Share::mean)
    for (Scored& token : others) token.score /= static_cast<float>(scores.rows());
  return others;
}

// Selectors

void OracleSelector::append(MatrixView<const float> keys) {
  if (keys.cols() != keys_.cols()) throw failed("keys of {} dimensions, not {}", keys.cols(), keys_.cols());
  Matrix<float> all(checked_add(keys_.rows(), keys.rows()), keys.cols());
  for (size_t t = 0; t < all.rows(); ++t)
    std::ranges::copy(t < keys_.rows() ? keys_.row(t) : keys.row(t - keys_.rows()), all.row(t).begin());
  own_ = std::move(all);
  keys_ = own_;
}

SignFit SignFit::of(MatrixView<const float> keys) {
  SignFit fit{{}, std::vector<float>(keys.cols())};
  for (size_t c = 0; c < keys.cols() && keys.rows() > 0; ++c) {
    double sum = 0;
    for (size_t t = 0; t < keys.rows(); ++t) sum += static_cast<double>(keys(t, c));
    fit.center[c] = static_cast<float>(sum / static_cast<double>(keys.rows()));
  }
  const Matrix<float> rows = centred(keys, fit.center);
  fit.codebook = build_codebooks(rows, sign_codes(rows), 1).front();
  return fit;
}

SignSelector::SignSelector(SignFit fit, SignIndex index, std::function<SignScorer()> on_device)
    : fit_(std::move(fit)), index_(std::move(index)), make_on_device_(std::move(on_device)) {
  if (fit_.codebook.dims() != index_.dims() || fit_.center.size() != index_.dims())
    throw failed("a codebook of {} dimensions and a mean of {} for codes of {}", fit_.codebook.dims(),
                 fit_.center.size(), index_.dims());
}

void SignSelector::append(MatrixView<const float> keys) {
  index_.append(sign_codes(centred(keys, fit_.center)));
  make_on_device_ = nullptr;
}

void SignSelector::scores(MatrixView<const float> queries, MatrixView<float> out) const {
  if (out.rows() != queries.rows())
    throw failed("{} rows of scores for {} queries", out.rows(), queries.rows());
  std::vector<SignTable> tables;
  for (size_t q = 0; q < queries.rows(); ++q) tables.emplace_back(fit_.codebook, queries.row(q));
  if (make_on_device_ && tokens() > 0)
    if (const SignScorer& on_device = on_device_.get(make_on_device_); on_device && on_device(tables, out))
      return;
  for (size_t q = 0; q < queries.rows(); ++q) index_.scores(tables[q], out.row(q));
}

QuestSelector::QuestSelector(size_t dims, size_t page) : dims_(dims), page_(page) {
  if (page == 0) throw usage_error("a page of 0 tokens; at least 1 is needed");
}

void QuestSelector::append(MatrixView<const float> keys) {
  if (keys.cols() != dims_) throw failed("keys of {} dimensions, not {}", keys.cols(), dims_);
  const size_t total = checked_add(tokens_, keys.rows());
  bounds_.resize(checked_mul((total + page_ - 1) / page_, 2 * dims_));
  for (size_t i = 0; i < keys.rows(); ++i) {
    const size_t token = tokens_ + i;
    float* largest = bounds_.data() + token / page_ * 2 * dims_;
    float* smallest = largest + dims_;
    const float* key = keys.row(i).data();
    for (size_t j = 0; j < dims_; ++j) {
      const bool first = token % page_ == 0;
      largest[j] = first ? key[j] : std::max(largest[j], key[j]);
      smallest[j] = first ? key[j] : std::min(smallest[j], key[j]);
    }
  }
  tokens_ = total;
}

void QuestSelector::scores(MatrixView<const float> queries, MatrixView<float> out) const {
  if (queries.cols() != dims_ || out.rows() != queries.rows() || out.cols() != tokens_)
    throw failed("queries ({}, {}) and scores ({}, {}) do not fit {} keys of {} dimensions", queries.rows(),
                 queries.cols(), out.rows(), out.cols(), tokens_, dims_);
  // max(q min, q max) is q max where q >= 0 and q min elsewhere: a product of rows.
  Matrix<float> parts(queries.rows(), 2 * dims_);
  for (size_t q = 0; q < queries.rows(); ++q)
    for (size_t j = 0; j < dims_; ++j) {
      parts(q, j) = std::max(queries(q, j), 0.0f);
      parts(q, dims_ + j) = std::min(queries(q, j), 0.0f);
    }
  const size_t pages = (tokens_ + page_ - 1) / page_;
  Matrix<float> page_scores(queries.rows(), pages);
  dot_products(parts, {bounds_.data(), pages, 2 * dims_}, page_scores);
  for (size_t q = 0; q < queries.rows(); ++q)
    for (size_t t = 0; t < tokens_; ++t) out(q, t) = page_scores(q, t / page_);
}

ClusterSelector::ClusterSelector(const ClusterIndex& index, uint64_t tokens)
    : index_(index), tokens_(tokens) {
  if (tokens < index.end()) throw failed("an index of {} tokens for {}", index.end(), tokens);
}

void ClusterSelector::scores(MatrixView<const float> queries, MatrixView<float> out) const {
  if (out.rows() != queries.rows() || out.cols() != tokens_)
    throw failed("{} x {} scores for {} queries and {} tokens", out.rows(), out.cols(), queries.rows(),
                 tokens_);
  std::vector<float> of_clusters(index_.clusters());
  const uint64_t first_waiting = std::max(index_.sink(), index_.end());  // behind sink and clusters
  for (size_t q = 0; q < queries.rows(); ++q) {
    index_.centroid_scores(queries.row(q), of_clusters);
    for (size_t token = 0; token < tokens_; ++token)
      out(q, token) = token >= first_waiting ? waiting_score(tokens_, token) : kInfinity;
    for (size_t c = 0; c < of_clusters.size(); ++c)
      for (const uint32_t token : index_.tokens_of(c)) out(q, token) = of_clusters[c];
  }
}

// Tokens that the last queries of a prompt attend to most

AttentionSums::AttentionSums(Matrix<float> queries, std::vector<uint64_t> query_tokens)
    : queries_(std::move(queries)),
      query_tokens_(std::move(query_tokens)),
      largest_(queries_.rows(), -std::numeric_limits<double>::infinity()),
      sums_(queries_.rows()) {}

AttentionSums AttentionSums::of_head(MatrixView<const float> queries, std::span<const uint64_t> tokens,
                                     size_t head, size_t group, size_t dims) {
  Matrix<float> own(tokens.size() * group, dims);
  std::vector<uint64_t> own_tokens;
  for (size_t i = 0; i < own.rows(); ++i) {
    std::ranges::copy(queries.row(i / group).subspan((head * group + i % group) * dims, dims),
                      own.row(i).begin());
    own_tokens.push_back(tokens[i / group]);
  }
  return {std::move(own), std::move(own_tokens)};
}

void AttentionSums::set_form(const ScoreForm& form, uint64_t window) {
  cap_ = static_cast<double>(form.cap);
  window_ = window;
  for (size_t q = 0; q < queries_.rows() && !form.sinks.empty(); ++q) {
    largest_[q] = static_cast<double>(form.sinks[q % form.sinks.size()]);
    sums_[q] = 1;
  }
}

template <class Body>
void AttentionSums::for_each_score(uint64_t first, MatrixView<const float> keys, const Body& body) const {
  Matrix<float> scores(queries_.rows(), keys.rows());
  dot_products(queries_, keys, scores);
  const double scale = 1 / std::sqrt(static_cast<double>(keys.cols()));
  for (size_t t = 0; t < keys.rows(); ++t)
    for (size_t q = 0; q < queries_.rows(); ++q) {
      const uint64_t token = first + t, end = query_tokens_[q] + 1;
      if (token >= end || (window_ > 0 && token + window_ < end)) continue;
      const double score = static_cast<double>(scores(q, t)) * scale;
      body(q, token, cap_ > 0 ? cap_ * std::tanh(score / cap_) : score);
    }
}

/// As floats, since scores are no more exact; it takes a third of the time of doubles.
static double exp_of(double x) { return std::exp(static_cast<float>(x)); }

void AttentionSums::first_pass(uint64_t first, MatrixView<const float> keys) {
  for_each_score(first, keys, [&](size_t q, uint64_t, double score) {
    if (score > largest_[q]) {
      sums_[q] = sums_[q] * exp_of(largest_[q] - score) + 1;
      largest_[q] = score;
    } else {
      sums_[q] += exp_of(score - largest_[q]);
    }
  });
}

void AttentionSums::second_pass(uint64_t first, MatrixView<const float> keys) {
  weights_.resize(first + keys.rows());
  for_each_score(first, keys, [&](size_t q, uint64_t token, double score) {
    const double weight = exp_of(score - largest_[q]) / sums_[q];
    weights_[token] += squares_ ? weight * weight : weight;
  });
}

std::vector<uint32_t> heaviest_tokens(std::span<const double> weights, size_t count, size_t pooled) {
  const size_t reach = pooled / 2;
  std::vector<float> sums(weights.size());
  for (size_t t = 0; t < weights.size(); ++t) {
    double sum = 0;
    for (size_t i = t - std::min(t, reach); i < std::min(t + reach + 1, weights.size()); ++i)
      sum += weights[i];
    sums[t] = static_cast<float>(sum);
  }
  return ids_in_order(top_k(sums, count, Order::by_id));
}

}  // namespace kvcodec
