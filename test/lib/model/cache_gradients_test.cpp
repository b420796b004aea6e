#include "lib/model/cache_gradients.hpp"

#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/model/rope.hpp"
#include "lib/model/row_ops.hpp"
#include "test/derivative.hpp"
#include "test/lib/model/naive_llama.hpp"
#include "test/test.hpp"

namespace cache_gradients_test {

using namespace kvcodec;

namespace {

using Row = test::NaiveLlama::Row;
using Rows = std::vector<Row>;  // [token]

/// A document, and the question about the tokens after its first ones: the sum of the targets' log-probabilities.
struct Question {
  ModelConfig config;
  WeightsInMemory weights;
  size_t past;
  std::vector<uint32_t> tokens, targets;  // targets: of the tokens behind the past ones

  Question(ModelConfig wanted, DType type, size_t past_tokens, size_t new_tokens, uint64_t seed)
      : config(std::move(wanted)), weights(test::random_weights(config, type, seed)), past(past_tokens) {
    Rng rng(seed + 1);
    const auto draw = [&] {
      return static_cast<uint32_t>(rng.below(static_cast<uint64_t>(config.vocabulary_size)));
    };
    for (size_t i = 0; i < past_tokens + new_tokens; ++i) tokens.push_back(draw());
    for (size_t i = 0; i < new_tokens; ++i) targets.push_back(draw());
  }
};

double log_probability(const Row& logits, uint32_t target) {
  double total = 0;
  for (const double logit : logits) total += std::exp(logit);
  return logits[target] - std::log(total);
}

/// The question in double, after any cache.
class Naive {
 public:
  explicit Naive(const Question& question) : question_(question), model_(question.config, question.weights) {
    const auto result = model_.run(question.tokens);
    for (const auto& [from, to] : {std::pair{&result.key, &cache_[0]}, std::pair{&result.value, &cache_[1]}})
      for (const Rows& layer : *from) to->emplace_back(layer.begin(), layer.begin() + long(question.past));
  }

  /// By side and layer.
  const std::vector<Rows>& cache(size_t side) const { return cache_[side]; }

  double answer() const {
    const auto result = model_.run(question_.tokens, [&](int layer, Rows& key, Rows& value) {
      std::ranges::copy(cache_[0][size_t(layer)], key.begin());
      std::ranges::copy(cache_[1][size_t(layer)], value.begin());
    });
    double sum = 0;
    for (size_t i = 0; i < question_.targets.size(); ++i)
      sum += log_probability(result.logits[question_.past + i], question_.targets[i]);
    return sum;
  }

  double derivative(size_t side, size_t layer, size_t token, size_t place) {
    return test::derivative([&] { return answer(); }, cache_[side][layer][token][place]);
  }

 private:
  const Question& question_;
  test::NaiveLlama model_;
  std::vector<Rows> cache_[2];
};

struct NaiveCache final : PastCache {
  explicit NaiveCache(const Naive& from) : naive(from) {}
  void read(int layer, size_t, MatrixView<float> keys, MatrixView<float> values) override {
    for (size_t t = 0; t < keys.rows(); ++t)
      for (size_t j = 0; j < keys.cols(); ++j) {
        keys(t, j) = static_cast<float>(naive.cache(0)[size_t(layer)][t][j]);
        values(t, j) = static_cast<float>(naive.cache(1)[size_t(layer)][t][j]);
      }
  }
  const Naive& naive;
};

/// Asks the question, and keeps the derivatives.
class Answer final : public Differentiated {
 public:
  explicit Answer(const Question& question) : question_(question) {
    for (auto& side : gradients) side.resize(size_t(question.config.num_layers));
  }
  void by_logits(size_t first, MatrixView<const float> logits, MatrixView<float> derivatives) override {
    CHECK_EQ(first, asked_);
    asked_ += logits.rows();
    for (size_t i = 0; i < logits.rows(); ++i) {
      const Row row(logits.row(i).begin(), logits.row(i).end());
      for (uint32_t token = 0; token < row.size(); ++token)
        derivatives(i, token) = static_cast<float>((token == question_.targets[first + i]) -
                                                   std::exp(log_probability(row, token)));
    }
  }
  void by_cache(int layer, MatrixView<const float> keys, MatrixView<const float> values) override {
    CHECK_EQ(asked_, question_.targets.size());
    for (const auto& [from, to] : {std::pair{keys, &gradients[0]}, std::pair{values, &gradients[1]}}) {
      Matrix<float> kept(from.rows(), from.cols());
      for (size_t t = 0; t < from.rows(); ++t) std::ranges::copy(from.row(t), kept.row(t).begin());
      (*to)[size_t(layer)] = kept;
    }
  }

  std::vector<Matrix<float>> gradients[2];  // by side: [layer], (past, key_width)

 private:
  const Question& question_;
  size_t asked_ = 0;
};

Answer ask(const Question& question, const Naive& naive, bool before_rope = false) {
  const LlamaModel model(question.config, question.weights);
  NaiveCache cache(naive);
  Answer answer(question);
  differentiate(model,
                {.tokens = std::span(question.tokens).subspan(question.past),
                 .past = question.past,
                 .cache = &cache,
                 .before_rope = before_rope},
                answer);
  return answer;
}

float largest(const Matrix<float>& matrix) {
  float highest = 0;
  for (size_t i = 0; i < matrix.size(); ++i) highest = std::max(highest, std::abs(matrix.data()[i]));
  return highest;
}

/// Compares derivatives with differences in double: all of them, or about `count` of each layer's side.
void check_gradients(const Question& question, size_t count) {
  Naive naive(question);
  const Answer answer = ask(question, naive);
  Rng rng(12);
  double worst = 0;
  for (size_t side = 0; side < 2; ++side)
    for (size_t layer = 0; layer < size_t(question.config.num_layers); ++layer) {
      const Matrix<float>& gradients = answer.gradients[side][layer];
      REQUIRE_EQ(gradients.rows(), question.past);
      REQUIRE_EQ(gradients.cols(), size_t(question.config.key_width()));
      const double size = largest(gradients);
      REQUIRE_GT(size, 1e-3);  // or the differences would be rounding
      for (size_t t = 0; t < gradients.rows(); ++t)
        for (size_t j = 0; j < gradients.cols(); ++j) {
          if (rng.below(gradients.size()) >= count) continue;
          const double error = std::abs(naive.derivative(side, layer, t, j) - double(gradients(t, j))) / size;
          worst = std::max(worst, error);
          CAPTURE(side);
          CAPTURE(layer);
          CAPTURE(t);
          CAPTURE(j);
          CHECK_LE(error, 2e-5);  // float against double; one wrong sign or mask gives 1e-2 and more
        }
    }
  MESSAGE("largest difference, of the largest derivative: ", worst);
}

}  // namespace

TEST_CASE("derivatives by a cache: those of differences in double, for each part that a model may have") {
  struct Case {
    const char* what;
    ModelConfig config;
    DType type = DType::f32;
  };
  const ModelConfig plain = test::make_config(2, 16, 24, 4, 2, 8);
  std::vector<Case> cases(8, {"plain", plain});
  cases[1] = {"every head its own", test::make_config(3, 16, 24, 2, 2, 6)};
  cases[2].what = "heads turned in part", cases[2].config.rope.dims = 4;
  cases[3].what = "all switches", cases[3].type = DType::bf16;
  test::switch_all_on(cases[3].config);
  cases[3].config.window = {0, 7};
  cases[4].what = "windows", cases[4].config.window = {3, 12};
  cases[5].what = "norms of heads", cases[5].config.qk_norm = QkNorm::heads;
  cases[6].what = "a window of one token in the last layer", cases[6].config.window = {0, 1};
  cases[7].what = "one layer", cases[7].config = test::make_config(1, 16, 24, 4, 1, 8);
  uint64_t seed = 40;
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const Question question(c.config, c.type, 9, 11, seed++);
    if (c.config.window.back() == 1) {  // nothing of the past is seen there
      const Answer answer = ask(question, Naive(question));
      CHECK_EQ(largest(answer.gradients[0][1]), 0);
      CHECK_EQ(largest(answer.gradients[1][1]), 0);
      CHECK_GT(largest(answer.gradients[0][0]), 1e-3);
      continue;
    }
    check_gradients(question, test::kSanitized ? 40 : 1 << 30);
  }
}

TEST_CASE("derivatives by a cache: across all tile bounds (long)") {
  // More queries than a tile, keys than a block and logits than are computed at a time; more inputs than a tile; more outputs than
  // are summed at a time; a chunk and more.
  constexpr size_t kSome = test::kSanitized ? 3 : 12;
  check_gradients({test::make_config(2, 8, 12, 4, 2, 4), DType::f32, 300, 140, 50}, kSome);
  check_gradients({test::make_config(2, 272, 300, 4, 2, 72), DType::bf16, 5, 6, 51}, kSome);
  check_gradients({test::make_config(2, 16, 2100, 2, 1, 8, 2070), DType::f16, 5, 6, 52}, kSome);
  ModelConfig windows = test::make_config(2, 8, 12, 2, 1, 4);
  windows.window = {270, 400};
  check_gradients({windows, DType::f32, 290, 1030, 53}, 3);
}

TEST_CASE(
    "derivatives by a cache: those by keys before the rotary embedding are turned back by each token's place") {
  ModelConfig config = test::make_config(2, 16, 24, 4, 2, 8);
  config.rope.dims = 6;
  config.rope.scaling.kind = RopeScaling::Kind::yarn;
  config.rope.scaling.factor = 4, config.rope.scaling.original_positions = 16;
  config.rope.scaling.attention_factor = 1.3;
  const Question question(config, DType::f32, 12, 10, 60);
  const Naive naive(question);
  const Answer turned = ask(question, naive), before = ask(question, naive, true);
  const std::vector<float> frequencies = rope_frequencies(config.rope, config.head_dim);
  REQUIRE_EQ(frequencies.size(), 3);
  for (size_t layer = 0; layer < 2; ++layer)
    for (size_t t = 0; t < question.past; ++t)
      for (size_t head = 0; head < 16; head += 8) {
        const auto k = turned.gradients[0][layer].row(t).subspan(head, 8),
                   found = before.gradients[0][layer].row(t).subspan(head, 8);
        for (size_t j = 0; j < 3; ++j) {
          // k = 1.3 R k0, so by k0: 1.3 R^T times what is by k.
          const double angle = static_cast<float>(t) * frequencies[j], c = 1.3 * std::cos(angle),
                       s = 1.3 * std::sin(angle);
          CHECK_EQ(found[j], doctest::Approx(c * k[j] + s * k[j + 3]).epsilon(1e-4).scale(0.01));
          CHECK_EQ(found[j + 3], doctest::Approx(c * k[j + 3] - s * k[j]).epsilon(1e-4).scale(0.01));
        }
        CHECK_EQ(found[6], k[6]);
        CHECK_EQ(found[7], k[7]);
      }
  for (size_t layer = 0; layer < 2; ++layer)
    for (size_t i = 0; i < turned.gradients[1][layer].size(); ++i)
      CHECK_EQ(turned.gradients[1][layer].data()[i], before.gradients[1][layer].data()[i]);
}

TEST_CASE("derivatives by a cache: the same bits for any number of threads") {
  ModelConfig config = test::make_config(2, 24, 40, 6, 2, 10);
  test::switch_all_on(config);
  const Question question(config, DType::f32, 300, 200, 70);
  const Naive naive(question);
  const int before = num_threads();
  set_num_threads(1);
  const Answer once = ask(question, naive);
  for (const int threads : {2, 5}) {
    set_num_threads(threads);
    const Answer again = ask(question, naive);
    for (size_t side = 0; side < 2; ++side)
      for (size_t layer = 0; layer < 2; ++layer)
        CHECK(std::ranges::equal(
            std::span(once.gradients[side][layer].data(), once.gradients[side][layer].size()),
            std::span(again.gradients[side][layer].data(), again.gradients[side][layer].size())));
  }
  set_num_threads(before);
}

TEST_CASE("derivatives by a cache: what cannot be asked is refused") {
  const Question question(test::make_config(2, 16, 24, 4, 2, 8), DType::f32, 4, 5, 80);
  const LlamaModel model(question.config, question.weights);
  const Naive naive(question);
  NaiveCache cache(naive);
  Answer answer(question);
  const std::vector<uint32_t> beyond = {1, 50};
  CHECK_THROWS_AS(differentiate(model, {.tokens = {}, .past = 4, .cache = &cache}, answer), Error);
  CHECK_THROWS_AS(differentiate(model, {.tokens = question.tokens, .past = 0, .cache = &cache}, answer),
                  Error);
  CHECK_THROWS_AS(differentiate(model, {.tokens = question.tokens, .past = 4, .cache = nullptr}, answer),
                  Error);
  CHECK_THROWS_AS(differentiate(model, {.tokens = beyond, .past = 4, .cache = &cache}, answer), Error);
  WeightsInMemory headless = question.weights;
  headless.remove("lm_head.weight");
  CHECK_THROWS_AS(differentiate(LlamaModel(question.config, headless),
                                {.tokens = question.tokens, .past = 4, .cache = &cache}, answer),
                  Error);

  ModelConfig config = question.config;
  CHECK_EQ(beyond_gradients(config), "");
  config.activation = Activation::clamped_swiglu;
  CHECK_EQ(beyond_gradients(config), "an MLP that bounds its values");
  config.mixture.experts = 2;
  CHECK_EQ(beyond_gradients(config), "a mixture of experts");
}

TEST_CASE("derivatives by a cache: memory grows with what it depends on") {
  const ModelConfig config = test::make_config(4, 64, 96, 4, 2, 16);
  const uint64_t bytes = gradient_bytes(config, 100, 200, 2);
  CHECK_GT(bytes, uint64_t{4} * 100 * 64 * 4);  // hidden states of all layers
  CHECK_GT(gradient_bytes(config, 101, 200, 2), bytes + 4 * 64 * 4);
  CHECK_GT(gradient_bytes(config, 100, 201, 2), bytes + 4 * 32 * 4);
  CHECK_GT(gradient_bytes(config, 100, 200, 3), bytes);
  ModelConfig deeper = config;
  deeper.num_layers = 8, deeper.window.assign(8, 0);
  CHECK_EQ(gradient_bytes(deeper, 100, 200, 2), bytes + uint64_t{4} * 100 * 64 * 4);
}

TEST_CASE("derivatives of rows: those of differences in double") {
  Rng rng(90);
  constexpr size_t kSize = 37;
  std::vector<float> x(kSize), weight(kSize), up(kSize), gradient(kSize);
  for (std::vector<float>* const row : {&x, &weight, &up, &gradient})
    for (float& value : *row) value = static_cast<float>(1.5 * rng.normal() + 0.3);
  using Function = std::function<std::vector<double>(const std::vector<double>&)>;
  const auto difference = [&](const Function& function, const std::vector<float>& at, size_t place) {
    constexpr double kStep = 1e-5;
    std::vector<double> above(at.begin(), at.end()), below = above;
    above[place] += kStep, below[place] -= kStep;
    const std::vector<double> high = function(above), low = function(below);
    double sum = 0;
    for (size_t i = 0; i < high.size(); ++i) sum += double(gradient[i]) * (high[i] - low[i]) / (2 * kStep);
    return sum;
  };
  const auto normed = [&](double centre) {  // 0: rms_norm, 1: layer_norm
    return [&, centre](const std::vector<double>& from) {
      double mean = 0, squares = 0;
      for (const double value : from) mean += centre * value / double(kSize);
      for (const double value : from) squares += (value - mean) * (value - mean);
      std::vector<double> out;
      for (size_t i = 0; i < kSize; ++i)
        out.push_back((from[i] - mean) / std::sqrt(squares / double(kSize) + 0.1) * double(weight[i]));
      return out;
    };
  };
  std::vector<float> found = gradient;
  rms_norm_back(x, weight, 0.1, found);
  for (size_t i = 0; i < kSize; ++i)
    CHECK_EQ(found[i], doctest::Approx(difference(normed(0), x, i)).epsilon(1e-5).scale(1));
  found = gradient;
  layer_norm_back(x, weight, 0.1, found);
  for (size_t i = 0; i < kSize; ++i)
    CHECK_EQ(found[i], doctest::Approx(difference(normed(1), x, i)).epsilon(1e-5).scale(1));

  const auto activation_of = [](Activation activation, double v) {
    if (activation == Activation::silu) return v / (1 + std::exp(-v));
    if (activation == Activation::gelu) return 0.5 * v * std::erfc(-v / std::sqrt(2.0));
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (v + 0.044715 * v * v * v)));
  };
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh})
    for (const bool gated : {true, false}) {
      CAPTURE(static_cast<int>(activation));
      CAPTURE(gated);
      std::vector<float> by_x = x, by_up = gated ? up : std::vector<float>();
      activate_back(activation, gradient, by_x, by_up);
      for (size_t i = 0; i < kSize; ++i) {
        const double v = double(x[i]), step = 1e-6;
        const double slope =
            (activation_of(activation, v + step) - activation_of(activation, v - step)) / (2 * step);
        CHECK_EQ(by_x[i], doctest::Approx(double(gradient[i]) * slope * (gated ? double(up[i]) : 1))
                              .epsilon(1e-5)
                              .scale(1));
        if (gated)
          CHECK_EQ(
              by_up[i],
              doctest::Approx(double(gradient[i]) * activation_of(activation, v)).epsilon(1e-5).scale(1));
      }
    }
  std::vector<float> far = {-200, 200}, by_far = {1, 1};
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
    std::vector<float> by_x = far;
    activate_back(activation, by_far, by_x, {});
    CHECK_EQ(by_x[0], doctest::Approx(0));
    CHECK_EQ(by_x[1], doctest::Approx(1));
  }
  CHECK_FALSE(has_derivative(Activation::clamped_swiglu));
  CHECK_THROWS_AS(activate_back(Activation::clamped_swiglu, gradient, x, up), Error);
  CHECK_THROWS_AS(rms_norm_back(x, weight, 0.1, std::span(found).first(3)), Error);
}

}  // namespace cache_gradients_test
