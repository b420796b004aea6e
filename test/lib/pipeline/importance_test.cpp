// Weights of tokens (lib/pipeline/importance.hpp), compared with plain sums of doubles.
#include "lib/pipeline/importance.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/codec/registry.hpp"
#include "lib/core/rng.hpp"
#include "lib/pipeline/closed_loop.hpp"
#include "test/lib/model/naive_llama.hpp"
#include "test/lib/model/small_model.hpp"
#include "test/lib/model/weights_in_memory.hpp"
#include "test/test.hpp"

namespace importance_test {

using namespace kvcodec;

namespace {

Matrix<float> random_rows(size_t rows, size_t cols, Rng& rng, double deviation) {
  Matrix<float> matrix(rows, cols);
  for (float& value : std::span(matrix.data(), matrix.size()))
    value = static_cast<float>(deviation * rng.normal());
  return matrix;
}

/// Adds squared weights of the last 32 queries of a layer.
void add_squares(const TokenImportance::Layer& layer, const Matrix<float>& keys, std::vector<double>& sums) {
  const size_t n = layer.query_tokens.size(), q_heads = layer.queries.cols() / layer.dims,
               group = q_heads / layer.heads;
  for (size_t i = n - std::min<size_t>(n, 32); i < n; ++i)
    for (size_t q = 0; q < q_heads; ++q) {
      std::vector<double> weights(sums.size());
      double sum = layer.form.sinks.empty() ? 0 : std::exp(double{layer.form.sinks[q]});
      for (size_t t = layer.first; t <= layer.query_tokens[i]; ++t) {
        if (layer.window > 0 && t + layer.window <= layer.query_tokens[i]) continue;
        double score = 0;
        for (size_t c = 0; c < layer.dims; ++c)
          score += double{layer.queries(i, q * layer.dims + c)} * double{keys(t, q / group * layer.dims + c)};
        score /= std::sqrt(double(layer.dims));
        const auto cap = double{layer.form.cap};
        sum += weights[t] = std::exp(cap > 0 ? cap * std::tanh(score / cap) : score);
      }
      for (size_t t = 0; t < sums.size(); ++t) sums[t] += std::pow(weights[t] / sum, 2);
    }
}

}  // namespace

TEST_CASE("importance: squared attention of the last queries, in all forms of scores, over its mean") {
  Rng rng(3);
  constexpr size_t kTokens = 1500, kDims = 8;
  std::vector<uint64_t> asked;
  for (uint64_t t = kTokens - 42; t < kTokens - 2; ++t) asked.push_back(t);
  const std::vector<float> sinks{0.5f, -1, 2, 1};
  std::vector<double> sums(kTokens);
  TokenImportance importance(kTokens);
  for (const int kind : {0, 1, 2}) {
    const size_t heads = kind == 1 ? 4 : 2;
    const Matrix<float> keys = random_rows(kTokens, heads * kDims, rng, 1),
                        queries = random_rows(asked.size(), 4 * kDims, rng, 3);
    TokenImportance::Layer layer{.queries = queries, .query_tokens = asked, .heads = heads, .dims = kDims};
    if (kind == 1) layer.form = {.cap = 2, .sinks = sinks}, layer.window = 100, layer.first = 1300;
    if (kind == 2) layer.form.sinks = sinks;
    importance.add(layer, [&](uint64_t first, MatrixView<float> rows) {
      CHECK_GE(first, layer.first);
      for (size_t t = 0; t < rows.rows(); ++t) std::ranges::copy(keys.row(first + t), rows.row(t).begin());
    });
    add_squares(layer, keys, sums);
  }
  double mean = 0;
  for (const double sum : sums) mean += sum / kTokens;
  const std::vector<float> weights = importance.weights();
  REQUIRE_EQ(weights.size(), kTokens);
  for (size_t t = 0; t < kTokens; ++t)
    CHECK(double{weights[t]} == doctest::Approx(sums[t] / mean + 0.05).epsilon(1e-4));
  CHECK_EQ(weights.back(), 0.05f);  // no query is behind it
}

TEST_CASE("importance: without queries all tokens weigh the same") {
  CHECK(TokenImportance(0).weights().empty());
  TokenImportance importance(3);
  importance.add({.queries = {}, .query_tokens = {}, .heads = 2, .dims = 4},
                 [](uint64_t, MatrixView<float>) { FAIL("nothing need be read"); });
  CHECK(importance.weights() == std::vector<float>(3, 1));
}

namespace {

/// Keeps all tokens, and the weights that it is told.
class Weigher final : public Codec {
 public:
  explicit Weigher(const Codec& keeper) : keeper_(keeper) {}
  Record parameters() const override { return keeper_.parameters(); }
  bool weighs_tokens() const override { return true; }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override { return keeper_.streams(shape); }
  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    const uint64_t before = keeper_.open(shape, document)->tokens();
    {
      const std::lock_guard lock(mutex);
      auto& own = seen[{shape.first_layer(), shape.side}];
      for (size_t t = 0; t < rows.rows(); ++t) own.push_back(document.token_weight(before + t));
    }
    keeper_.append(shape, rows, document);
  }
  mutable std::mutex mutex;
  mutable std::map<std::pair<int, Side>, std::vector<float>> seen;

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return Codec::view_of(keeper_, shape, document);
  }

 private:
  const Codec& keeper_;
};

}  // namespace

TEST_CASE("importance: the closed loop weighs a prefix by its last queries, and nothing behind it") {
  ModelConfig config = test::small_config(2);
  config.window = {0, 20};
  const WeightsInMemory weights = test::random_weights(config, DType::f32, 5);
  const LlamaModel model{config, weights};
  Rng rng(6);
  LoopDocument document{{}, 60};
  for (size_t i = 0; i < 90; ++i) document.tokens.push_back(static_cast<uint32_t>(rng.below(60)));
  const ScoreForms forms{.known = true, .windows = {0, 20}, .q_heads = 4};
  const std::vector<float> expected = token_weights(run_prefix(model, document, 32), config, forms);
  // The plain sums of the same.
  const Prefix prefix = run_prefix(model, document, 32);
  std::vector<double> sums(60);
  for (size_t layer = 0; layer < 2; ++layer)
    add_squares({.queries = prefix.queries[layer],
                 .query_tokens = prefix.query_tokens,
                 .heads = 2,
                 .dims = 16,
                 .window = forms.windows[layer]},
                prefix.rows.keys[layer], sums);
  double mean = 0;
  for (const double sum : sums) mean += sum / 60;
  for (size_t t = 0; t < 60; ++t)
    CHECK(double{expected[t]} == doctest::Approx(sums[t] / mean + 0.05).epsilon(1e-4));
  const auto keeper = codec_from_record(find_codec("none"), {},
                                        {.num_layers = 2, .heads = 2, .head_dim = 16, .storage = DType::f32});
  for (const WindowLayers layers : {WindowLayers::keep, WindowLayers::trim}) {
    const Weigher weigher(*keeper);
    ClosedLoop(model, {{&weigher, DType::f32, {}}}, {.stream = 10, .window_layers = layers, .scores = forms})
        .run({&document, 1});
    REQUIRE_EQ(weigher.seen.size(), 4);
    for (const auto& [part, seen] : weigher.seen) {
      const size_t left_out = layers == WindowLayers::trim && part.first == 1 ? 60 - seen.size() + 29 : 0;
      REQUIRE_EQ(seen.size(), 60 - left_out + 29);
      for (size_t t = 0; t < seen.size(); ++t)
        if (left_out + t < 60)  // the model read all of the document there, in products of other shapes
          CHECK(seen[t] == doctest::Approx(expected[left_out + t]).epsilon(1e-4));
        else
          CHECK_EQ(seen[t], 1.0f);
    }
  }
}

}  // namespace importance_test
