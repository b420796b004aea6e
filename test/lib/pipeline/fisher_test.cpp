#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/eigen.hpp"
#include "lib/model/rope.hpp"
#include "lib/pipeline/sensitivity.hpp"
#include "test/lib/model/naive_llama.hpp"
#include "test/lib/model/small_model.hpp"
#include "test/test.hpp"

namespace fisher_test {

using namespace kvcodec;

namespace {

struct Bench {
  ModelConfig config;
  WeightsInMemory weights;
  LlamaModel model;
  std::vector<LoopDocument> documents;

  Bench(const ModelConfig& wanted, size_t count, size_t prefix, size_t length)
      : config(wanted), weights(test::random_weights(config, DType::f32, 5)), model(config, weights) {
    Rng rng(6);
    for (size_t d = 0; d < count; ++d) {
      LoopDocument document{{}, prefix + d};
      for (size_t i = 0; i < length; ++i) document.tokens.push_back(static_cast<uint32_t>(rng.below(60)));
      documents.push_back(document);
    }
  }
  Bench() : Bench(test::small_config(3), 6, 40, 100) {}

  Fisher measure(const FisherOptions& options) const { return measure_fisher(model, documents, options); }
};

Matrix<double> widened(const Matrix<float>& matrix) {
  Matrix<double> wide(matrix.rows(), matrix.cols());
  for (size_t i = 0; i < matrix.size(); ++i) wide.data()[i] = double{matrix.data()[i]};
  return wide;
}

bool same(const Fisher& a, const Fisher& b) {
  for (size_t side = 0; side < 2; ++side)
    for (size_t i = 0; i < a.matrices[side].size(); ++i) {
      const Matrix<float>&x = a.matrices[side][i], &y = b.matrices[side][i];
      if (!std::ranges::equal(std::span(x.data(), x.size()), std::span(y.data(), y.size()))) return false;
    }
  return true;
}

}  // namespace

TEST_CASE("Fisher matrices: symmetric, with no eigenvalue below 0, of every layer, side and head") {
  const Bench bench;
  const Fisher fisher = bench.measure({});
  CHECK_EQ(fisher.layers, 3);
  CHECK_EQ(fisher.heads, 2);
  CHECK(fisher.keys_before_rope);
  for (const Side side : kSides) {
    REQUIRE_EQ(fisher.matrices[static_cast<size_t>(side)].size(), 6);
    for (int layer = 0; layer < 3; ++layer) {
      double trace = 0;
      for (int head = 0; head < 2; ++head) {
        const Matrix<float>& matrix = fisher.of(side, layer, head);
        REQUIRE_EQ(matrix.rows(), 16);
        REQUIRE_EQ(matrix.cols(), 16);
        for (size_t i = 0; i < 16; ++i) {
          trace += double{matrix(i, i)};
          for (size_t j = 0; j < i; ++j) CHECK_EQ(matrix(i, j), matrix(j, i));
        }
        const std::vector<double> values = symmetric_eigenvalues(widened(matrix));
        CHECK_GT(values.back(), 0);
        CHECK_GT(values.front(), -1e-6 * values.back());
      }
      CHECK_EQ(fisher.nats(side, layer), doctest::Approx(trace / 2));
    }
  }
}

TEST_CASE("Fisher matrices: half of a trace is what small noise costs") {
  // Targets are drawn anew for every seed; the mean over many is the Fisher information itself. Noise of the target below costs
  // slightly more or less than predicted: that is the growth.
  const Bench bench;
  SensitivityOptions noise;
  noise.target = 2e-4;
  const auto costs = measure_sensitivities(bench.model, bench.documents, noise);
  constexpr int kSeeds = 12;
  std::vector<Fisher> drawn;
  for (int64_t seed = 0; seed < kSeeds; ++seed) drawn.push_back(bench.measure({.seed = seed}));
  for (int layer = 0; layer < 3; ++layer)
    for (const Side side : kSides) {
      double mean = 0;
      for (const Fisher& fisher : drawn) mean += fisher.nats(side, layer) / kSeeds;
      const Sensitivity& cost = costs[static_cast<size_t>(layer)][static_cast<size_t>(side)];
      CAPTURE(layer);
      CAPTURE(static_cast<int>(side));
      CAPTURE(cost.growth());
      MESSAGE("layer ", layer, ": ", mean / cost.nats.mean);
      CHECK_EQ(mean / cost.nats.mean, doctest::Approx(1).epsilon(0.15));
    }
}

TEST_CASE("Fisher matrices: they say which directions noise costs most in") {
  // Values of one token of one head, moved along the first eigenvector and along the last.
  const Bench bench(test::small_config(1), 1, 6, 60);
  Matrix<double> mean(16, 16);
  for (int64_t seed = 0; seed < 40; ++seed) {
    const Fisher fisher = bench.measure({.sink = 5, .seed = seed});  // one token is left
    for (size_t i = 0; i < mean.size(); ++i)
      mean.data()[i] += double{fisher.of(Side::value, 0, 1).data()[i]} / 40;
  }
  const Eigen eigen = symmetric_eigen(mean);  // rising

  struct Moved final : PastCache {
    void read(int layer, size_t, MatrixView<float> keys, MatrixView<float> values) override {
      const auto place = static_cast<size_t>(layer);
      for (size_t t = 0; t < keys.rows(); ++t) {
        std::ranges::copy(prefix->rows.keys[place].row(t), keys.row(t).begin());
        std::ranges::copy(prefix->rows.values[place].row(t), values.row(t).begin());
      }
      for (size_t j = 0; j < 16; ++j) values(5, 16 + j) += step * direction[j];
    }
    const Prefix* prefix = nullptr;
    float step = 0;
    std::vector<float> direction;
  } moved;
  ReferenceRun run(bench.model, bench.documents[0], 0);
  moved.prefix = &run.prefix();
  const auto cost = [&](size_t which, float step) {
    moved.step = step;
    moved.direction.clear();
    for (size_t j = 0; j < 16; ++j) moved.direction.push_back(static_cast<float>(eigen.vectors(which, j)));
    std::vector<Judged> judged(run.judged());
    std::vector<Judged>* const places[] = {&judged};
    run.go_on({.count = run.judged(), .cache = moved, .judged = places});
    return sums_of(judged).divergence / static_cast<double>(run.judged());
  };
  for (const size_t which : {15, 14, 13}) {
    const float step = 0.3f;
    const double foretold = double{step} * double{step} * eigen.values[which] / 2;
    CHECK_EQ((cost(which, step) + cost(which, -step)) / 2 / foretold, doctest::Approx(1).epsilon(0.3));
  }
  CHECK_LT(cost(0, 0.3f), 0.1 * cost(15, 0.3f));
}

TEST_CASE("Fisher matrices: keys that cannot be turned back are those that attention takes") {
  ModelConfig config = test::small_config(2);
  config.rope.scaling.kind = RopeScaling::Kind::longrope;
  config.rope.scaling.divisors.assign(8, 1), config.rope.scaling.long_divisors.assign(8, 2);
  config.rope.scaling.original_positions = 4096;
  REQUIRE_FALSE(KeyRope::of(config).known());
  const Bench turned(config, 2, 20, 50), plain(test::small_config(2), 2, 20, 50);
  const Fisher a = turned.measure({}), b = plain.measure({});
  CHECK_FALSE(a.keys_before_rope);
  CHECK(b.keys_before_rope);
  // The angles are the same, and so are the lengths of derivatives.
  for (int layer = 0; layer < 2; ++layer)
    for (const Side side : kSides)
      CHECK_EQ(a.nats(side, layer), doctest::Approx(b.nats(side, layer)).epsilon(1e-4));
  const auto differs = [&](Side side) {
    double largest = 0, size = 0;
    for (size_t i = 0; i < 256; ++i) {
      const double x = double{a.of(side, 0, 0).data()[i]}, y = double{b.of(side, 0, 0).data()[i]};
      largest = std::max(largest, std::abs(x - y)), size = std::max(size, std::abs(y));
    }
    return largest / size;
  };
  CHECK_GT(differs(Side::key), 0.01);
  CHECK_LT(differs(Side::value), 1e-4);
}

TEST_CASE("Fisher matrices: the same for any number of threads, and another seed draws other targets") {
  const Bench bench;
  const int before = num_threads();
  set_num_threads(1);
  const Fisher once = bench.measure({});
  set_num_threads(3);
  const Fisher again = bench.measure({});
  set_num_threads(before);
  const Fisher other = bench.measure({.seed = 1});
  CHECK(same(once, again));
  CHECK_FALSE(same(once, other));
  for (int layer = 0; layer < 3; ++layer)
    for (const Side side : kSides)
      CHECK_EQ(other.nats(side, layer), doctest::Approx(once.nats(side, layer)).epsilon(0.5));
}

TEST_CASE("Fisher matrices: tokens of the sink are left out") {
  const Bench bench;
  const Fisher all = bench.measure({.sink = 0}), some = bench.measure({.sink = 30});
  for (int layer = 0; layer < 3; ++layer)
    for (const Side side : kSides) {
      CHECK_LT(some.nats(side, layer), 0.8 * all.nats(side, layer));
      CHECK_GT(some.nats(side, layer), 0);
    }
}

TEST_CASE("Fisher matrices: what cannot be measured is refused") {
  Bench bench;
  CHECK_THROWS_AS(measure_fisher(bench.model, {}, {}), Error);
  CHECK_THROWS_AS(bench.measure({.memory = 1000}), Error);
  CHECK_THROWS_AS(bench.measure({.sink = 40}), Error);
  ModelConfig experts = bench.config;
  experts.mixture.experts = 2;
  CHECK_THROWS_WITH_AS(check_fisher(experts, bench.documents, {}),
                       "the model has a mixture of experts, through which derivatives are not taken", Error);
  WeightsInMemory broken = bench.weights;
  const std::vector<float> huge(60 * 32, 1e30f);
  broken.add("lm_head.weight", DType::f32, {60, 32}, huge);
  const LlamaModel overflowing(bench.config, broken);
  CHECK_THROWS_AS(measure_fisher(overflowing, bench.documents, {}), Error);
  bench.documents[1].prefix = 99;
  CHECK_THROWS_AS(bench.measure({}), Error);
}

}  // namespace fisher_test
