// Choosing tokens from scores (choose_tokens), and the tokens to which a prompt attends most (AttentionSums): compared with their
// definitions, computed here in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "lib/attention/selector.hpp"
#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/test.hpp"

namespace token_choice_test {

using namespace kvcodec;

namespace {

Matrix<float> random_rows(size_t rows, size_t cols, Rng& rng, double deviation = 1) {
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(deviation * rng.normal());
  return matrix;
}

double product(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double(a[i]) * double(b[i]);
  return sum;
}

/// softmax(scores / sqrt(dims)), the mean of the rows.
std::vector<double> mean_weights(const std::vector<std::vector<double>>& scores, size_t dims) {
  std::vector<double> mean(scores[0].size());
  for (const std::vector<double>& row : scores) {
    const double largest = *std::ranges::max_element(row);
    double sum = 0;
    for (const double score : row) sum += std::exp((score - largest) / std::sqrt(double(dims)));
    for (size_t t = 0; t < row.size(); ++t)
      mean[t] += std::exp((row[t] - largest) / std::sqrt(double(dims))) / sum / double(scores.size());
  }
  return mean;
}

/// Ids of the largest values that are not among `without`, best first.
std::vector<uint32_t> largest(const std::vector<double>& values, const std::set<uint32_t>& without,
                              size_t count) {
  std::vector<uint32_t> ids;
  for (uint32_t t = 0; t < values.size(); ++t)
    if (!without.contains(t)) ids.push_back(t);
  std::ranges::stable_sort(ids, [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
  ids.resize(std::min(ids.size(), count));
  return ids;
}

std::set<uint32_t> ids_of(const std::vector<Scored>& chosen) {
  std::set<uint32_t> ids;
  for (const Scored& token : chosen) ids.insert(token.id);
  CHECK_EQ(ids.size(), chosen.size());  // none twice
  return ids;
}

/// A head whose scores approximate the products.
struct Head {
  static constexpr size_t kDims = 16, kTokens = 200, kQueries = 3;
  Matrix<float> keys, queries, scores{kQueries, kTokens};
  std::vector<std::vector<double>> guessed, products;

  explicit Head(uint64_t seed) : Head(Rng(seed)) {}

  TokenChoice choice(uint64_t budget) const {
    return {.queries = queries, .visible = kTokens, .budget = budget};
  }
  std::vector<Scored> choose(const TokenChoice& choice, const ChoosingRule& rule) const {
    Matrix<float> own(kQueries, kTokens);
    std::copy_n(scores.data(), scores.size(), own.data());
    return choose_tokens(choice, rule, keys, own.view().rows(0, choice.queries.rows()));
  }

 private:
  explicit Head(Rng rng)
      : keys(random_rows(kTokens, kDims, rng)), queries(random_rows(kQueries, kDims, rng)) {
    // Heads differ in scale: the largest score of one gives no information about the others.
    for (size_t q = 0; q < kQueries; ++q)
      for (float& value : queries.row(q)) value *= static_cast<float>(1 + 4 * q);
    for (size_t q = 0; q < kQueries; ++q) {
      guessed.emplace_back();
      products.emplace_back();
      for (size_t t = 0; t < kTokens; ++t) {
        products[q].push_back(product(queries.row(q), keys.row(t)));
        scores(q, t) = static_cast<float>(products[q][t] + 3 * (1 + 4 * double(q)) * rng.normal());
        guessed[q].push_back(double(scores(q, t)));
      }
    }
  }
};

}  // namespace

TEST_CASE(
    "choice of tokens: by the mean of the weights that scores stand for, of each query head or of all") {
  for (const uint64_t seed : {1, 2, 3}) {
    const Head head(seed);
    for (const uint64_t budget : {1, 17, 199, 200, 1000}) {
      const auto weights = mean_weights(head.guessed, Head::kDims);
      const auto expected = largest(weights, {}, budget);
      const auto chosen = head.choose(head.choice(budget), {.share = Share::weight});
      CHECK(ids_of(chosen) == std::set<uint32_t>(expected.begin(), expected.end()));
      CHECK(std::ranges::is_sorted(chosen, std::greater{}, &Scored::score));
      for (const Scored& token : chosen)
        CHECK(double(token.score) == doctest::Approx(weights[token.id]).epsilon(1e-4));
      TokenChoice one = head.choice(budget);
      one.queries = head.queries.view().rows(0, 1);
      const auto own = largest(head.guessed[0], {}, budget);
      CHECK(ids_of(head.choose(one, {.share = Share::each})) == std::set<uint32_t>(own.begin(), own.end()));
    }
    // This differs from the choice by the largest score.
    CHECK(ids_of(head.choose(head.choice(17), {.share = Share::weight})) !=
          ids_of(head.choose(head.choice(17), {.share = Share::max})));
  }
}

TEST_CASE(
    "choice of tokens: a group that shares by the mean or the largest score gets that as the tokens' scores") {
  const Head head(9);
  for (const Share share : {Share::mean, Share::max})
    for (const Scored& token : head.choose(head.choice(20), {.share = share})) {
      double sum = 0, highest = head.guessed[0][token.id];
      for (const auto& scores : head.guessed)
        sum += scores[token.id], highest = std::max(highest, scores[token.id]);
      const double expected = share == Share::mean ? sum / Head::kQueries : highest;
      CHECK(double(token.score) == doctest::Approx(expected).epsilon(1e-5));
    }
}

TEST_CASE("choice of tokens: the larger sum of three heads is chosen, also where the means are equal") {
  float less = 1.5f;
  while (less / 3 != std::nextafter(less, 2.0f) / 3) less = std::nextafter(less, 2.0f);
  const float more = std::nextafter(less, 2.0f);
  Matrix<float> queries(3, 1), keys(2, 1), scores(3, 2);
  scores(0, 0) = less, scores(0, 1) = more;
  const auto chosen =
      choose_tokens({.queries = queries, .visible = 2, .budget = 1}, {.share = Share::mean}, keys, scores);
  REQUIRE_EQ(chosen.size(), 1);
  CHECK_EQ(chosen[0].id, 1);
  CHECK_EQ(chosen[0].score, more / 3);
}

TEST_CASE("choice of tokens: of candidates the products decide") {
  const Head head(4);
  const uint64_t budget = 10;
  // 0: scores unchanged. 1e4: one that promises far more than all others, without cause. -1e4: the best products are those of
  // tokens that promised least.
  for (const double wild : {0.0, 1e4, -1e4})
    for (const uint64_t times : {2, 4, 100}) {
      CAPTURE(times);
      CAPTURE(wild);
      Head own(4);
      for (size_t q = 0; wild != 0 && q < Head::kQueries; ++q) {
        const std::vector<double>& products = own.products[q];
        const auto token = static_cast<size_t>(
            (wild > 0 ? std::ranges::min_element(products) : std::ranges::max_element(products)) -
            products.begin());
        own.scores(q, token) = static_cast<float>(wild);
        own.guessed[q][token] = wild;
      }
      const auto candidates = largest(mean_weights(own.guessed, Head::kDims), {}, budget * times);
      auto known = own.guessed;
      for (size_t q = 0; q < known.size(); ++q)
        for (const uint32_t token : candidates) known[q][token] = own.products[q][token];
      const auto all = mean_weights(known, Head::kDims);
      auto weights = all;
      for (uint32_t t = 0; t < weights.size(); ++t)
        if (std::ranges::find(candidates, t) == candidates.end()) weights[t] = -1;
      const auto expected = largest(weights, {}, budget);
      const auto chosen = own.choose(own.choice(budget), {.share = Share::weight, .candidates = times});
      CHECK(ids_of(chosen) == std::set<uint32_t>(expected.begin(), expected.end()));
      for (const Scored& token : chosen)
        CHECK(double(token.score) == doctest::Approx(all[token.id]).epsilon(1e-4));
    }
  // With all of them it equals the choice by products.
  const auto best = largest(mean_weights(head.products, Head::kDims), {}, budget);
  CHECK(ids_of(head.choose(head.choice(budget), {.share = Share::weight, .candidates = 100})) ==
        std::set<uint32_t>(best.begin(), best.end()));
  CHECK(ids_of(head.choose(head.choice(budget), {.share = Share::weight})) !=
        std::set<uint32_t>(best.begin(), best.end()));
}

TEST_CASE("choice of tokens: no more than have the share of the weights that is asked for") {
  const Head head(5);
  const auto weights = mean_weights(head.products, Head::kDims);
  for (const double mass : {0.3, 0.9, 0.99, 1.0}) {
    CAPTURE(mass);
    const auto order = largest(weights, {0, 1}, Head::kTokens);
    double covered = weights[0] + weights[1];
    size_t count = 0;
    while (covered < mass && count < order.size()) covered += weights[order[count++]];
    TokenChoice choice = head.choice(Head::kTokens);
    choice.sink = 2;
    const ChoosingRule rule{.share = Share::weight, .candidates = 100, .mass = mass};
    const size_t chosen = head.choose(choice, rule).size();
    if (mass < 1) CHECK_EQ(chosen, count + 2);
    choice.budget = 5;
    CHECK_EQ(head.choose(choice, rule).size(), std::min<size_t>(5, count + 2));
  }
  CHECK_THROWS_AS(head.choose(head.choice(5), {.share = Share::max, .mass = 0.5}), Error);
}

TEST_CASE(
    "choice of tokens: first, newest and heavy ones come before all others, within the budget, none twice") {
  const Head head(6);
  const std::vector<uint32_t> heavy = {2, 50, 77, 120, 199};
  for (const Share share : {Share::weight, Share::max, Share::mean})
    for (const uint64_t candidates : {1, 3})
      for (uint64_t budget = 0; budget <= 30; ++budget) {
        CAPTURE(share);
        CAPTURE(budget);
        TokenChoice choice = head.choice(budget);
        choice.sink = 4, choice.newest = 3, choice.heavy = heavy;
        const auto chosen = ids_of(head.choose(choice, {.share = share, .candidates = candidates}));
        CHECK_EQ(chosen.size(), budget);
        // The first ones, then the newest, then the heavy ones that are neither.
        const std::vector<uint32_t> order = {0, 1, 2, 3, 199, 198, 197, 50, 77, 120};
        for (size_t i = 0; i < std::min<size_t>(budget, order.size()); ++i) CHECK(chosen.contains(order[i]));
      }
}

TEST_CASE("choice of tokens: selectors may give what they keep infinite scores") {
  Head head(7);
  const float beyond = std::numeric_limits<float>::infinity();
  for (size_t q = 0; q < Head::kQueries; ++q)
    for (size_t t = 0; t < 16; ++t) head.scores(q, t) = beyond;
  for (const uint64_t budget : {3, 16, 40}) {
    TokenChoice choice = head.choice(budget);
    choice.sink = 16;
    for (const Share share : {Share::weight, Share::max}) {
      const auto chosen = head.choose(choice, {.share = share});
      const auto ids = ids_of(chosen);
      CHECK_EQ(ids.size(), budget);
      for (uint32_t t = 0; t < std::min<uint64_t>(16, budget); ++t) CHECK(ids.contains(t));
      for (const Scored& token : chosen) CHECK_FALSE(std::isnan(token.score));
      if (share == Share::weight)
        for (const Scored& token : chosen) CHECK_LE(token.score, 1.0001f);
    }
  }
}

TEST_CASE("choice of tokens: what has no score yet is chosen by its products") {
  Head head(9);
  const size_t waiting = 60;
  for (size_t q = 0; q < Head::kQueries; ++q)
    for (size_t t = Head::kTokens - waiting; t < Head::kTokens; ++t) head.scores(q, t) = 1e30f;
  auto known = head.guessed;
  for (size_t q = 0; q < known.size(); ++q)
    for (size_t t = Head::kTokens - waiting; t < Head::kTokens; ++t) known[q][t] = head.products[q][t];
  TokenChoice choice = head.choice(30);
  choice.unscored = waiting;
  const auto expected = largest(mean_weights(known, Head::kDims), {}, 30);
  CHECK(ids_of(head.choose(choice, {.share = Share::weight})) ==
        std::set<uint32_t>(expected.begin(), expected.end()));
  std::vector<double> shared(Head::kTokens);
  for (size_t t = 0; t < shared.size(); ++t) shared[t] = std::max({known[0][t], known[1][t], known[2][t]});
  const auto by_largest = largest(shared, {}, 30);
  CHECK(ids_of(head.choose(choice, {.share = Share::max})) ==
        std::set<uint32_t>(by_largest.begin(), by_largest.end()));
}

TEST_CASE("choice of tokens: within a window, by weights of scores that are capped, beside sinks") {
  const Head head(4);
  const float sinks[] = {3, -2, 40};
  const size_t from = 70;
  TokenChoice choice = head.choice(25);
  choice.from = from;
  choice.form = {.cap = 1.5f, .sinks = sinks};
  std::vector<double> mean(Head::kTokens);
  for (size_t q = 0; q < Head::kQueries; ++q) {
    const auto capped = [&](size_t t) {
      return 1.5 * std::tanh(head.guessed[q][t] / std::sqrt(double(Head::kDims)) / 1.5);
    };
    double sum = std::exp(double(sinks[q]));
    for (size_t t = from; t < Head::kTokens; ++t) sum += std::exp(capped(t));
    for (size_t t = from; t < Head::kTokens; ++t) mean[t] += std::exp(capped(t)) / sum / Head::kQueries;
  }
  std::set<uint32_t> outside;
  for (uint32_t t = 0; t < from; ++t) outside.insert(t);
  const auto expected = largest(mean, outside, 25);
  const auto chosen = head.choose(choice, {.share = Share::weight});
  CHECK(ids_of(chosen) == std::set<uint32_t>(expected.begin(), expected.end()));
  for (const Scored& token : chosen)
    CHECK(double(token.score) == doctest::Approx(mean[token.id]).epsilon(1e-4));

  // Tokens that are kept anyway count from the first token of the document on.
  const std::vector<uint32_t> heavy = {69, 100};
  choice.sink = 72, choice.heavy = heavy, choice.newest = 2, choice.budget = 5;
  CHECK(ids_of(head.choose(choice, {.share = Share::max})) == std::set<uint32_t>{70, 71, 100, 198, 199});
  choice.sink = 10, choice.budget = 3;
  CHECK(ids_of(head.choose(choice, {.share = Share::max})) == std::set<uint32_t>{100, 198, 199});
  choice.from = Head::kTokens + 1;
  CHECK_THROWS_AS(head.choose(choice, {}), Error);
}

TEST_CASE("heavy tokens: the largest sums of softmax weights over neighbours, whatever the pieces") {
  Rng rng(8);
  const size_t tokens = 150, dims = 8, queries = 6;
  const Matrix<float> keys = random_rows(tokens, dims, rng), asked = random_rows(queries, dims, rng, 3);
  std::vector<uint64_t> of;
  for (size_t i = 0; i < queries; ++i)
    of.push_back(tokens - 3 + i / 2);  // two query heads; each sees what is there
  const float two[] = {1.5f, -0.5f};
  const std::pair<ScoreForm, size_t> forms[] = {{{}, 0}, {{.cap = 2, .sinks = two}, 40}};
  for (const auto& [form, window] : forms)
    for (const size_t piece : {1, 7, 150}) {
      std::vector<double> weights(tokens);
      for (size_t q = 0; q < queries; ++q) {
        const size_t begin = window > 0 ? of[q] + 1 - window : 0;
        double sum = form.sinks.empty() ? 0 : std::exp(double(form.sinks[q % 2]));
        std::vector<double> own(tokens);
        for (size_t t = begin; t <= of[q]; ++t) {
          const double score = product(asked.row(q), keys.row(t)) / std::sqrt(double(dims));
          sum += own[t] = std::exp(form.cap > 0 ? 2 * std::tanh(score / 2) : score);
        }
        for (size_t t = 0; t < tokens; ++t) weights[t] += own[t] / sum;
      }
      Matrix<float> copy(queries, dims);
      std::copy_n(asked.data(), asked.size(), copy.data());
      AttentionSums sums(std::move(copy), of);
      sums.set_form(form, window);
      for (const bool second : {false, true})
        for (size_t first = 0; first < tokens; first += piece) {
          const auto rows = keys.view().rows(first, std::min(piece, tokens - first));
          second ? sums.second_pass(first, rows) : sums.first_pass(first, rows);
        }
      REQUIRE_EQ(sums.weights().size(), tokens);
      for (size_t t = 0; t < tokens; ++t)
        CHECK(sums.weights()[t] == doctest::Approx(weights[t]).epsilon(1e-5));
      for (const size_t pooled : {1, 5}) {
        std::vector<double> pools(tokens);
        for (size_t t = 0; t < tokens; ++t)
          for (size_t i = t - std::min(t, pooled / 2); i <= std::min(tokens - 1, t + pooled / 2); ++i)
            pools[t] += weights[i];
        auto expected = largest(pools, {}, 12);
        std::ranges::sort(expected);
        CHECK(heaviest_tokens(sums.weights(), 12, pooled) == expected);
      }
      CHECK_EQ(heaviest_tokens(sums.weights(), 1000).size(), tokens);
    }
}

}  // namespace token_choice_test
