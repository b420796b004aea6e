#include "lib/pipeline/sensitivity.hpp"

#include <cmath>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/pipeline/closed_loop.hpp"
#include "test/lib/model/naive_llama.hpp"
#include "test/lib/model/small_model.hpp"
#include "test/test.hpp"

namespace sensitivity_test {

using namespace kvcodec;

namespace {

struct Bench {
  ModelConfig config = test::small_config(3);
  WeightsInMemory weights = test::random_weights(config, DType::f32, 5);
  LlamaModel model{config, weights};
  std::vector<LoopDocument> documents;

  Bench() {
    Rng rng(6);
    for (size_t d = 0; d < 6; ++d) {
      LoopDocument document{{}, 40 + d};
      for (size_t i = 0; i < 100; ++i) document.tokens.push_back(static_cast<uint32_t>(rng.below(60)));
      documents.push_back(document);
    }
  }
};

/// The mean divergence that q4 with that many bits causes; errors: the mean squared ones of each side and layer.
double divergence_of_q4(const Bench& bench, int64_t bits, std::array<std::vector<double>, 2>& errors) {
  Record options;
  options.set("bits", bits);
  const CodecContext context{
      .num_layers = 3, .heads = 2, .head_dim = 16, .query_heads = 4, .storage = DType::bf16};
  const auto codec = codec_from_record(find_codec("q4"), options, context);
  double divergence = 0, tokens = 0;
  for (const LoopResult& result :
       ClosedLoop(bench.model, {{codec.get(), DType::f32, {}}}, {}).run(bench.documents)) {
    divergence += result.settings[0].sums.divergence;
    tokens += static_cast<double>(result.settings[0].sums.tokens);
  }
  errors = {};
  for (const Side side : kSides)
    for (size_t layer = 0; layer < 3; ++layer) {
      double squares = 0, values = 0;
      for (const LoopDocument& document : bench.documents) {
        const Prefix prefix = run_prefix(bench.model, document, 0);
        const Matrix<float>& rows = prefix.rows.of(side)[layer];
        const GroupShape shape = usual_group(static_cast<int>(layer), 1, 2, 16, side);
        Encoded encoded(codec->streams(shape));
        StreamStore& store = encoded.add_document();
        codec->append(shape, rows, store);
        Matrix<float> decoded(rows.rows(), rows.cols());
        codec->open(shape, store)->decode(0, decoded);
        for (size_t i = 0; i < rows.size(); ++i)
          squares += std::pow(double{rows.data()[i]} - double{decoded.data()[i]}, 2);
        values += static_cast<double>(rows.size());
      }
      errors[static_cast<size_t>(side)].push_back(squares / values);
    }
  return divergence / tokens;
}

}  // namespace

TEST_CASE("sensitivities: with both noises the divergence is near the target, and grows with the variance") {
  const Bench bench;
  SensitivityOptions options;
  options.target = 0.004;
  const auto all = measure_sensitivities(bench.model, bench.documents, options);
  REQUIRE_EQ(all.size(), 3);
  for (const auto& layer : all)
    for (const Sensitivity& side : layer) {
      const auto& [small, large] = side.probes;
      CHECK_EQ(large.deviation, doctest::Approx(2 * small.deviation));
      // A side of little influence gets no more noise for that: it may stay below the target.
      CHECK_LT(large.divergence.mean, 2.5 * options.target);
      CHECK_GT(large.divergence.mean / small.divergence.mean, 3);
      CHECK_LT(large.divergence.mean / small.divergence.mean, 4.5);
      const double naive = small.divergence.mean / (small.deviation * small.deviation);
      CHECK_EQ(side.nats.mean, doctest::Approx(naive).epsilon(0.2));
      CHECK_GT(side.nats.half_width, 0);
      CHECK_LT(side.nats.half_width, side.nats.mean);
      CHECK_GT(side.variance, 0);
    }
}

TEST_CASE("sensitivities predict what a codec costs: the sum of its squared errors, weighted by them") {
  const Bench bench;
  const auto all = measure_sensitivities(bench.model, bench.documents, {});
  for (const int64_t bits : {4, 5, 6}) {
    CAPTURE(bits);
    std::array<std::vector<double>, 2> errors;
    const double cost = divergence_of_q4(bench, bits, errors);
    double predicted = 0;
    for (size_t layer = 0; layer < 3; ++layer)
      for (size_t side = 0; side < 2; ++side) predicted += all[layer][side].nats.mean * errors[side][layer];
    CHECK_EQ(cost / predicted, doctest::Approx(1).epsilon(0.4));
  }
}

TEST_CASE(
    "sensitivities: the same for any number of threads, and another seed is other noise of the same size") {
  const Bench bench;
  const int before = num_threads();
  SensitivityOptions options;
  set_num_threads(1);
  const auto once = measure_sensitivities(bench.model, bench.documents, options);
  set_num_threads(3);
  const auto again = measure_sensitivities(bench.model, bench.documents, options);
  set_num_threads(before);
  options.seed = 1;
  const auto other = measure_sensitivities(bench.model, bench.documents, options);
  for (size_t layer = 0; layer < once.size(); ++layer)
    for (size_t side = 0; side < 2; ++side) {
      const Sensitivity &a = once[layer][side], &b = again[layer][side], &c = other[layer][side];
      CHECK_EQ(a.nats.mean, b.nats.mean);
      CHECK_EQ(a.probes[1].deviation, b.probes[1].deviation);
      CHECK_NE(a.nats.mean, c.nats.mean);
      CHECK_EQ(c.nats.mean, doctest::Approx(a.nats.mean).epsilon(0.5));
    }
}

TEST_CASE("sensitivities: the sink gets no noise") {
  const Bench bench;
  SensitivityOptions nearly_all, none;
  none.sink = 0, nearly_all.sink = 39;  // one noisy token, or a few, in each prefix
  const auto some = measure_sensitivities(bench.model, bench.documents, nearly_all),
             all = measure_sensitivities(bench.model, bench.documents, none);
  for (size_t layer = 0; layer < all.size(); ++layer)
    for (size_t side = 0; side < 2; ++side)
      CHECK_LT(some[layer][side].nats.mean, 0.5 * all[layer][side].nats.mean);
}

TEST_CASE("sensitivities: what cannot be measured is refused") {
  Bench bench;
  SensitivityOptions options;
  CHECK_THROWS_AS(measure_sensitivities(bench.model, {}, options), Error);
  options.memory = 1000;
  CHECK_THROWS_AS(measure_sensitivities(bench.model, bench.documents, options), Error);
  options.memory = 0, options.sink = 40;
  CHECK_THROWS_AS(measure_sensitivities(bench.model, bench.documents, options), Error);
  options.sink = 4;
  bench.documents[1].prefix = 99;
  CHECK_THROWS_AS(measure_sensitivities(bench.model, bench.documents, options), Error);
}

}  // namespace sensitivity_test
