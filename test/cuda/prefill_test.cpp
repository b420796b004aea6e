#include "cuda/prefill/prefill.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cuda/engine.hpp"
#include "cuda/prefill/blas.hpp"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half_bits.hpp"
#include "lib/core/rng.hpp"
#include "lib/model/llama.hpp"
#include "test/cuda/prefill_error.hpp"
#include "test/cuda/products_case.hpp"
#include "test/lib/model/naive_llama.hpp"

#ifdef KVCODEC_EMULATED
#include "test/cuda/emulation/emulation.hpp"
#endif

namespace prefill_test {

using namespace kvcodec;

namespace {

// Against lib, which is itself that far from sums in double (unit tests of the forward pass). Sums are off by
// prefill_sum_error() at the most, here of less than 100 products 1e-5, and by a tenth of that mostly; a
// wrong mask, angle or row shows as 1e-3 and more.
constexpr double kTolerance = 2e-6;

/// All data passed to the sink, in order, by kind.
struct Collector final : PrefillSink {
  std::vector<float> key, value, query, key_before, query_before, logit_rows, hidden_rows;
  std::vector<size_t> order;  ///< layer, first and rows of each call

  static void add(std::vector<float>& to, MatrixView<const float> rows) {
    for (size_t i = 0; i < rows.rows(); ++i) to.insert(to.end(), rows.row(i).begin(), rows.row(i).end());
  }
  void layer(const LayerChunk& chunk) override {
    order.insert(order.end(), {static_cast<size_t>(chunk.layer), chunk.first, chunk.key.rows()});
    add(key, chunk.key), add(value, chunk.value), add(query, chunk.query);
    add(key_before, chunk.key_before_rope), add(query_before, chunk.query_before_rope);
  }
  void logits(size_t first, MatrixView<const float> rows) override {
    order.insert(order.end(), {first, rows.rows()});
    add(logit_rows, rows);
  }
  void hidden(MatrixView<const float> rows) override { add(hidden_rows, rows); }
};

/// |found - expected| / |expected|
double difference(const std::vector<float>& found, const std::vector<float>& expected) {
  if (found.size() != expected.size()) return INFINITY;
  double error = 0, size = 1e-30;
  for (size_t i = 0; i < found.size(); ++i) {
    error += std::pow(double{found[i]} - double{expected[i]}, 2);
    size += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / size);
}

void check_same(const Collector& found, const Collector& expected) {
  CHECK(found.order == expected.order);
  CHECK(difference(found.key, expected.key) <= kTolerance);
  CHECK(difference(found.value, expected.value) <= kTolerance);
  CHECK(difference(found.query, expected.query) <= kTolerance);
  CHECK(difference(found.key_before, expected.key_before) <= kTolerance);
  CHECK(difference(found.query_before, expected.query_before) <= kTolerance);
  CHECK(difference(found.logit_rows, expected.logit_rows) <= kTolerance);
  CHECK(difference(found.hidden_rows, expected.hidden_rows) <= kTolerance);
}

/// A model twice: on the CPU and on the device.
struct Pair {
  LlamaModel cpu, device;
  Pair(const ModelConfig& config, const WeightSource& weights)
      : cpu(config, weights), device(config, weights) {
    device.use(cuda::make_prefill_engine(test::device(), device.weights()));
  }
  void check_prefill(const PrefillBatch& batch, const PrefillOptions& options) const {
    Collector found, expected;
    device.prefill(batch, options, found);
    cpu.prefill(batch, options, expected);
    check_same(found, expected);
  }
};

std::vector<uint32_t> random_tokens(size_t count, Rng& rng) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(rng.below(50));
  return tokens;
}

/// The result of a prefill, as the cache of another one.
struct Kept final : PrefillSink, PastCache {
  std::vector<Matrix<float>> key, value;  ///< of each layer
  Kept(const ModelConfig& config, size_t tokens)
      : key(static_cast<size_t>(config.num_layers),
            Matrix<float>(tokens, static_cast<size_t>(config.key_width()))),
        value(key) {}
  void layer(const LayerChunk& chunk) override {
    const auto layer = static_cast<size_t>(chunk.layer);
    for (size_t i = 0; i < chunk.key.rows(); ++i) {
      std::ranges::copy(chunk.key.row(i), key[layer].row(chunk.first + i).begin());
      std::ranges::copy(chunk.value.row(i), value[layer].row(chunk.first + i).begin());
    }
  }
  void read(int layer, size_t document, MatrixView<float> keys, MatrixView<float> values) override {
    // Each document gets other tokens of the prefill.
    for (size_t i = 0; i < keys.rows(); ++i) {
      const size_t from = (document * 7 + i) % key[0].rows();
      std::ranges::copy(std::as_const(key[static_cast<size_t>(layer)]).row(from), keys.row(i).begin());
      std::ranges::copy(std::as_const(value[static_cast<size_t>(layer)]).row(from), values.row(i).begin());
    }
  }
};

}  // namespace

TEST_CASE("floats are the sum of three bf16") {
  Rng rng(51);
  for (int i = 0; i < 10000; ++i) {
    const float value = static_cast<float>(std::ldexp(rng.normal(), static_cast<int>(rng.below(160)) - 80));
    const Bf16Parts parts = bf16_parts(value);
    CHECK(bf16_to_float(parts.part[0]) + (bf16_to_float(parts.part[1]) + bf16_to_float(parts.part[2])) ==
          value);
    CHECK(double{bf16_to_float(parts.part[0])} + double{bf16_to_float(parts.part[1])} +
              double{bf16_to_float(parts.part[2])} ==
          double{value});
    if (std::abs(value) < 65504) CHECK(bf16_parts(f16_to_float(f16_from_float(value))).part[2] == 0);
    CHECK(bf16_parts(bf16_to_float(bf16_from_float(value))).part[1] == 0);
  }
}

TEST_CASE("device: prefill is lib's within rounding") {
  NEEDS_PRODUCTS();
  std::vector<test::ForwardCase> cases = {
      {"all switches", test::make_config(2, 24, 40, 6, 2, 10), DType::bf16, 60, 32},
      {"odd widths", test::make_config(2, 21, 33, 4, 4, 16), DType::f16, 37, 1024},
      {"a group larger than a tile", test::make_config(2, 8, 12, 300, 1, 2), DType::f32, 9, 1024},
      {"a window of one token", test::make_config(2, 16, 12, 2, 1, 32), DType::f32, 40, 16},
      {"heads of 64", test::make_config(2, 16, 8, 2, 1, 64), DType::bf16, 140, 100},
      {"heads of 96", test::make_config(2, 16, 8, 1, 1, 96), DType::bf16, 140, 1024},
      {"heads of 256", test::make_config(2, 16, 8, 2, 1, 256), DType::f32, 45, 1024},
  };
  test::switch_all_on(cases[0].config);
  cases[3].config.window = {1, 1};
  cases[4].config.window = {70, 200};
  const uint64_t seed = 52;
  INFO("seed ", seed);
  Rng rng(seed);
  for (const test::ForwardCase& c : cases) {
    CAPTURE(c.what);
    const WeightsInMemory weights = test::random_weights(c.config, c.type, rng.next());
    const Pair models(c.config, weights);
    const std::vector<uint32_t> tokens = random_tokens(c.tokens, rng);
    const std::vector<uint64_t> offsets = {0, tokens.size() / 3, tokens.size() / 3, tokens.size()};
    PrefillOptions options;
    options.chunk = c.chunk, options.logits = LogitRows::all;
    options.queries = options.before_rope = true;
    models.check_prefill({tokens, offsets}, options);
  }
}

TEST_CASE("device: a model with more parts than Llama's is declined, by name") {
  NEEDS_PRODUCTS();
  LlamaWeights weights;
  weights.config = test::make_config(2, 16, 24, 4, 2, 8);
  weights.config.family = "gemma2";
  weights.config.attention_softcap = 50;
  CHECK_THROWS_WITH(cuda::make_prefill_engine(test::device(), weights),
                    "gemma2 models have soft caps, which a device does not compute");
  weights.config = test::make_config(2, 16, 24, 4, 2, 8);
  weights.config.layer_rope = {LayerRope::usual, LayerRope::none};
  CHECK_THROWS_WITH(cuda::make_prefill_engine(test::device(), weights),
                    doctest::Contains("rotary embeddings that differ by layer"));
}

TEST_CASE("device: prefill hands out what is asked for, and no more") {
  NEEDS_PRODUCTS();
  const ModelConfig config = test::make_config(3, 16, 24, 4, 2, 8);
  Rng rng(53);
  const WeightsInMemory weights = test::random_weights(config, DType::bf16, 6);
  const Pair models(config, weights);
  const std::vector<uint32_t> tokens = random_tokens(30, rng);
  const std::vector<uint64_t> offsets = {0, 11, 30};
  PrefillOptions options;
  options.chunk = 7;
  for (const bool before : {false, true})
    for (const bool queries : {false, true}) {
      options.before_rope = before, options.queries = queries;
      models.check_prefill({tokens, offsets}, options);
#ifdef KVCODEC_EMULATED
      // Each of 3 layers holds for each of 30 tokens 2 heads of 8 of keys, as many of values, and 4 of queries.
      const uint64_t heads = 2 + 2 + (before ? 2 : 0) + (queries ? before ? 8 : 4 : 0);
      const uint64_t already = emulation::downloaded_bytes();
      Collector found;
      models.device.prefill({tokens, offsets}, options, found);
      CHECK(emulation::downloaded_bytes() - already == sizeof(float) * 3 * 30 * 8 * heads);
#endif
    }
  options.before_rope = options.queries = false;
  options.layers = 2;
  models.check_prefill({tokens, offsets}, options);
  options.layers = 0;
  for (const LogitRows rows : {LogitRows::last, LogitRows::later}) {
    options.logits = rows;
    models.check_prefill({tokens, offsets}, options);
  }
  options.logits = LogitRows::all, options.logits_from = 9;
  models.check_prefill({tokens, offsets}, options);

  Collector nothing;
  const std::vector<uint64_t> none = {0};
  models.device.prefill({{}, none}, {}, nothing);
  CHECK(nothing.order.empty());
}

TEST_CASE("device: prefill goes on from caches") {
  NEEDS_PRODUCTS();
  ModelConfig config = test::make_config(2, 16, 24, 4, 2, 16);
  config.window = {0, 20};
  Rng rng(54);
  const WeightsInMemory weights = test::random_weights(config, DType::f16, 7);
  const Pair models(config, weights);
  const std::vector<uint32_t> tokens = random_tokens(50, rng);
  Kept kept(config, 50);
  const std::vector<uint64_t> whole = {0, 50};
  models.cpu.prefill({tokens, whole}, {}, kept);
  const std::vector<uint32_t> more = random_tokens(21, rng);
  const std::vector<uint64_t> offsets = {0, 1, 6, 21}, past = {49, 0, 67};
  PrefillOptions options;
  options.chunk = 8, options.logits = LogitRows::later, options.queries = true;
  models.check_prefill({.tokens = more, .offsets = offsets, .past = past, .cache = &kept}, options);
}

TEST_CASE("device: logits have the precision of floats") {
  NEEDS_PRODUCTS();
  const ModelConfig config = test::make_config(1, 48, 8, 2, 1, 8);
  Rng rng(55);
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    const WeightsInMemory weights = test::random_weights(config, type, 8);
    const Pair models(config, weights);
    const Matrix<float> rows = test::random_rows(rng, 33, 60);
    const MatrixView<const float> hidden = rows.view().columns(5, 48);  // with a stride
    Matrix<float> found(33, 50);
    models.device.logits(hidden, found);
    const std::vector<float> head = read_floats(*weights.find("lm_head.weight"));
    double error = 0, size = 0;
    for (size_t i = 0; i < 33; ++i)
      for (size_t c = 0; c < 50; ++c) {
        double sum = 0;
        for (size_t j = 0; j < 48; ++j) sum += double{hidden(i, j)} * double{head[c * 48 + j]};
        error += std::pow(found(i, c) - sum, 2);
        size += sum * sum;
      }
    // Sums of 48 in float, at most three of them, of which the small ones do not count: about 2^-24 sqrt(48).
    // Without the third part of a row it is 1.3e-6, without the second 5e-4.
    CHECK(std::sqrt(error / size) < 6e-7);
  }
}

// Products of one sign, which truncated sums are all off in the same direction of: in one go 1e-4 and more.
TEST_CASE("device: long products are not biased") {
  NEEDS_PRODUCTS();
  constexpr int kWidth = 16384;
  const ModelConfig config = test::make_config(1, kWidth, 1, 1, 1, 2);
  WeightsInMemory weights = test::random_weights(config, DType::bf16, 11);
  const std::vector<float> head_row(50 * size_t{kWidth}, 1.3f);
  weights.add("lm_head.weight", DType::bf16, {50, uint64_t{kWidth}}, head_row);
  const double weight = double{bf16_to_float(bf16_from_float(1.3f))};
  const Pair models(config, weights);
  Matrix<float> hidden(3, kWidth), found(3, 50);
  for (size_t i = 0; i < 3; ++i) std::ranges::fill(hidden.row(i), 0.7f + 0.1f * static_cast<float>(i));
  models.device.logits(hidden, found);
  const double bound = test::prefill_sum_error(kWidth, cuda::kPreciseStretch);
  for (size_t i = 0; i < 3; ++i)
    for (size_t c = 0; c < 50; ++c) {
      const double sum = kWidth * weight * double{hidden(i, 0)};
      CHECK(std::abs(double{found(i, c)} - sum) <= bound * sum);
    }
}

TEST_CASE("device: a prefill whose sink fails leaves the next one alone") {
  NEEDS_PRODUCTS();
  const ModelConfig config = test::make_config(2, 16, 24, 4, 2, 8);
  Rng rng(56);
  const WeightsInMemory weights = test::random_weights(config, DType::bf16, 9);
  const Pair models(config, weights);
  const std::vector<uint32_t> tokens = random_tokens(20, rng);
  const std::vector<uint64_t> offsets = {0, 20};
  struct Full final : PrefillSink {
    void layer(const LayerChunk& chunk) override {
      if (chunk.layer == 1) throw failed("disk full");
    }
  } full;
  PrefillOptions options;
  options.logits = LogitRows::last;
  CHECK_THROWS_WITH(models.device.prefill({tokens, offsets}, options, full), "disk full");
  models.check_prefill({tokens, offsets}, options);
}

TEST_CASE("a prefill that an engine declines is the CPU's") {
  const ModelConfig config = test::make_config(2, 16, 24, 4, 2, 8);
  Rng rng(57);
  const WeightsInMemory weights = test::random_weights(config, DType::bf16, 9);
  LlamaModel model(config, weights);
  const std::vector<uint32_t> tokens = random_tokens(20, rng);
  const std::vector<uint64_t> offsets = {0, 20};
  struct Declines final : PrefillEngine {
    int asked = 0;
    std::unique_ptr<PrefillSteps> start(const PrefillPlan&) override { return ++asked, nullptr; }
    bool logits(MatrixView<const float>, MatrixView<float>) override { return ++asked, false; }
  };
  PrefillOptions options;
  options.logits = LogitRows::later;
  Collector found, expected;
  model.prefill({tokens, offsets}, options, expected);
  const auto engine = std::make_shared<Declines>();
  model.use(engine);
  model.prefill({tokens, offsets}, options, found);
  CHECK(found.key == expected.key);
  CHECK(found.hidden_rows == expected.hidden_rows);
  Matrix<float> logits(20, 50), again(20, 50);
  const MatrixView<const float> hidden(found.hidden_rows.data(), 20, 16);
  model.logits(hidden, logits);
  CHECK(engine->asked == 2);
  model.use(nullptr);
  model.logits(hidden, again);
  CHECK(std::equal(logits.data(), logits.data() + logits.size(), again.data()));
}

#ifdef KVCODEC_EMULATED
TEST_CASE("a prefill that began on a device takes no more memory") {
  const ModelConfig config = test::make_config(2, 16, 24, 4, 2, 16);
  Rng rng(59);
  const WeightsInMemory weights = test::random_weights(config, DType::f16, 12);
  Pair models(config, weights);
  struct ThenNone final : PrefillEngine {
    explicit ThenNone(std::shared_ptr<PrefillEngine> engine) : own(std::move(engine)) {}
    ~ThenNone() override { cuda::limit_free_bytes(cuda::kAllFreeBytes); }
    std::unique_ptr<PrefillSteps> start(const PrefillPlan& plan) override {
      auto steps = own->start(plan);
      REQUIRE(steps != nullptr);
      cuda::limit_free_bytes(0);
      return steps;
    }
    bool logits(MatrixView<const float>, MatrixView<float>) override { return false; }
    std::shared_ptr<PrefillEngine> own;
  };
  Kept kept(config, 50);
  const std::vector<uint32_t> tokens = random_tokens(50, rng), more = random_tokens(21, rng);
  const std::vector<uint64_t> whole = {0, 50}, offsets = {0, 1, 6, 21}, past = {49, 0, 67};
  models.cpu.prefill({tokens, whole}, {}, kept);
  for (const LogitRows rows : {LogitRows::all, LogitRows::last, LogitRows::later}) {
    models.device.use(
        std::make_shared<ThenNone>(cuda::make_prefill_engine(test::device(), models.device.weights())));
    PrefillOptions options;
    options.chunk = 8, options.logits = rows, options.queries = options.before_rope = true;
    models.check_prefill({.tokens = more, .offsets = offsets, .past = past, .cache = &kept}, options);
    models.device.use(nullptr);
  }
}

TEST_CASE("prefills and logits that memory is too small for are the CPU's") {
  const ModelConfig config = test::make_config(2, 16, 24, 4, 2, 8);
  Rng rng(58);
  const WeightsInMemory weights = test::random_weights(config, DType::bf16, 9);
  LlamaModel model(config, weights);
  const std::vector<uint32_t> tokens = random_tokens(20, rng);
  const std::vector<uint64_t> offsets = {0, 20};
  PrefillOptions options;
  options.logits = LogitRows::later;
  Collector found, expected;
  model.prefill({tokens, offsets}, options, expected);
  const MatrixView<const float> hidden(expected.hidden_rows.data(), 20, 16);
  Matrix<float> logits(20, 50), again(20, 50);
  model.logits(hidden, logits);
  cuda::limit_free_bytes(1000);
  CHECK_THROWS_AS(cuda::make_prefill_engine(test::device(), model.weights()), cuda::OutOfMemory);
  const auto other = cuda::make_engine();
  CHECK(other->make<PrefillEngine>(model.weights()) == nullptr);
  cuda::limit_free_bytes(cuda::kAllFreeBytes);
  const auto engine = other->make<PrefillEngine>(model.weights());
  REQUIRE(engine != nullptr);
  model.use(engine);
  cuda::limit_free_bytes(1000);
  model.prefill({tokens, offsets}, options, found);
  model.logits(hidden, again);
  cuda::limit_free_bytes(cuda::kAllFreeBytes);
  CHECK(other->taken() == 0);
  CHECK(found.key == expected.key);
  CHECK(found.hidden_rows == expected.hidden_rows);
  CHECK(std::equal(logits.data(), logits.data() + logits.size(), again.data()));
}

TEST_CASE("a step of a prefill that fails ends it, and is not counted as done") {
  const ModelConfig config = test::make_config(1, 16, 24, 4, 2, 8);
  Rng rng(60);
  const WeightsInMemory weights = test::random_weights(config, DType::bf16, 9);
  LlamaModel model(config, weights);
  const auto engine = cuda::make_engine();
  model.use(engine->make<PrefillEngine>(model.weights()));
  const std::vector<uint32_t> tokens = random_tokens(20, rng);
  const std::vector<uint64_t> offsets = {0, 20};
  PrefillOptions options;
  options.logits = LogitRows::later, options.queries = true;
  Collector found, expected, whole;
  emulation::fail_launches(true);
  CHECK_THROWS_AS(model.prefill({tokens, offsets}, options, found), cuda::DeviceFault);
  emulation::fail_launches(false);
  CHECK(engine->taken() == 2);  // the start and the embedding, which launch nothing
  CHECK(found.order.empty());
  model.prefill({tokens, offsets}, options, whole);
  model.use(nullptr);
  model.prefill({tokens, offsets}, options, expected);
  check_same(whole, expected);
}
#endif

TEST_CASE("device: heads wider than a device takes are refused") {
  NEEDS_DEVICE();
  const ModelConfig config = test::make_config(1, 8, 8, 1, 1, 258);
  const WeightsInMemory weights = test::random_weights(config, DType::bf16, 10);
  const LlamaModel model(config, weights);
  CHECK_THROWS_AS(cuda::make_prefill_engine(test::device(), model.weights()), Error);
}

}  // namespace prefill_test
