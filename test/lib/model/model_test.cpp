#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/model/llama.hpp"
#include "lib/model/rope.hpp"
#include "test/lib/model/naive_llama.hpp"
#include "test/test.hpp"

namespace model_test {

using namespace kvcodec;

namespace {

ModelConfig small_config() { return test::make_config(2, 16, 24, 4, 2, 8); }

std::vector<uint32_t> random_tokens(size_t count, Rng& rng) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(rng.below(50));
  return tokens;
}

/// Compares the whole output with the naive pass while it arrives.
class Comparison final : public PrefillSink {
 public:
  explicit Comparison(const test::NaiveLlama::Result& expected) : expected_(expected) {}
  void layer(const LayerChunk& chunk) override {
    const auto layer = static_cast<size_t>(chunk.layer);
    compare(chunk.key, expected_.key[layer], chunk.first);
    compare(chunk.value, expected_.value[layer], chunk.first);
    compare(chunk.query, expected_.query[layer], chunk.first);
  }
  void logits(size_t first, MatrixView<const float> rows) override { compare(rows, expected_.logits, first); }
  double error() const { return std::sqrt(error_ / size_); }
  size_t compared_rows = 0;

 private:
  void compare(MatrixView<const float> found, const std::vector<test::NaiveLlama::Row>& expected,
               size_t first) {
    for (size_t i = 0; i < found.rows(); ++i)
      for (size_t j = 0; j < found.cols(); ++j) {
        error_ += std::pow(found(i, j) - expected[first + i][j], 2);
        size_ += std::pow(expected[first + i][j], 2);
      }
    compared_rows += found.rows();
  }
  const test::NaiveLlama::Result& expected_;
  double error_ = 0, size_ = 0;
};

struct Nowhere final : PrefillSink {
  void layer(const LayerChunk&) override {}
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("forward pass: agrees with sums in double across all tile bounds") {
  std::vector<test::ForwardCase> cases = {
      {"more outputs than a tile", test::make_config(1, 272, 300, 4, 2, 72), DType::bf16, 40, 1024},
      {"more inputs than a block", test::make_config(1, 2072, 2049, 2, 1, 16), DType::f16, 5, 1024},
      {"more rows than a tile", test::make_config(2, 8, 12, 2, 1, 4), DType::f32, 530, 1024},
      {"more keys than a block", test::make_config(2, 8, 12, 2, 2, 4), DType::f32, 1040, 513},
      {"a window that begins within a block", test::make_config(2, 8, 12, 2, 1, 4), DType::f32, 1100, 256},
      {"a window of one token", test::make_config(2, 8, 12, 2, 1, 4), DType::f32, 70, 64},
      {"a group larger than an attention tile", test::make_config(1, 8, 12, 300, 1, 2), DType::f32, 20, 1024},
      {"all switches", test::make_config(2, 24, 40, 6, 2, 10), DType::bf16, 60, 32},
  };
  cases[4].config.window = {300, 530};
  cases[5].config.window = {1, 1};
  test::switch_all_on(cases[7].config);
  Rng rng(31);
  for (const test::ForwardCase& c : cases) {
    CAPTURE(c.what);
    const WeightsInMemory weights = test::random_weights(c.config, c.type, rng.next());
    const std::vector<uint32_t> tokens = random_tokens(c.tokens, rng);
    const auto expected = test::NaiveLlama(c.config, weights).run(tokens);
    Comparison comparison(expected);
    PrefillOptions options;
    options.chunk = c.chunk;
    options.queries = true;
    options.logits = LogitRows::all;
    const std::vector<uint64_t> offsets = {0, tokens.size()};
    LlamaModel(c.config, weights).prefill({tokens, offsets}, options, comparison);
    CHECK_EQ(comparison.compared_rows, c.tokens * (3 * static_cast<size_t>(c.config.num_layers) + 1));
    // Float against double: a single wrong mask or sum makes errors of 1e-3 and more.
    CHECK_LE(comparison.error(), 2e-6);
  }
}

TEST_CASE("forward pass: logits made later equal those made at once") {
  const ModelConfig config = small_config();
  Rng rng(36);
  const WeightsInMemory weights = test::random_weights(config, DType::f32, 4);
  const LlamaModel model(config, weights);
  const std::vector<uint32_t> tokens = random_tokens(50, rng);
  const std::vector<uint64_t> offsets = {0, 20, 50};
  struct Keeper final : PrefillSink {
    Matrix<float> logit_rows{50, 50}, hidden_rows;
    void layer(const LayerChunk&) override {}
    void logits(size_t first, MatrixView<const float> rows) override {
      for (size_t i = 0; i < rows.rows(); ++i)
        std::ranges::copy(rows.row(i), logit_rows.row(first + i).begin());
    }
    void hidden(MatrixView<const float> rows) override {
      hidden_rows = Matrix<float>(rows.rows(), rows.cols());
      for (size_t i = 0; i < rows.rows(); ++i) std::ranges::copy(rows.row(i), hidden_rows.row(i).begin());
    }
  };
  REQUIRE_EQ(config.vocabulary_size, 50);
  Keeper at_once, later;
  PrefillOptions options;
  options.logits = LogitRows::all;
  model.prefill({tokens, offsets}, options, at_once);
  CHECK_EQ(at_once.hidden_rows.rows(), 0);
  options.logits = LogitRows::later;
  model.prefill({tokens, offsets}, options, later);
  for (const auto& [first, count] : std::vector<std::pair<size_t, size_t>>{{0, 50}, {7, 1}, {13, 30}}) {
    Matrix<float> made(count, 50);
    model.logits(later.hidden_rows.view().rows(first, count), made);
    for (size_t i = 0; i < count; ++i)
      for (size_t c = 0; c < 50; ++c)
        CHECK(made(i, c) == doctest::Approx(at_once.logit_rows(first + i, c)).epsilon(1e-5).scale(1));
  }
  Matrix<float> wrong(3, 49);
  CHECK_THROWS_AS(model.logits(later.hidden_rows.view().rows(0, 3), wrong), Error);
}

TEST_CASE("forward pass: weights that lie at odd addresses are read all the same") {
  const ModelConfig config = small_config();
  Rng rng(32);
  const std::vector<uint32_t> tokens = random_tokens(20, rng);
  const std::vector<uint64_t> offsets = {0, tokens.size()};
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const WeightsInMemory weights = test::random_weights(config, type, 4);
    /// The same tensors, each one byte off.
    class Shifted final : public WeightSource {
     public:
      explicit Shifted(const WeightSource& source) : source_(source) {}
      const TensorView* find(std::string_view name) const override {
        const TensorView* original = source_.find(name);
        if (!original) return nullptr;
        auto& [bytes, view] = copies_[std::string(name)];
        bytes.resize(original->bytes.size() + 1);
        std::memcpy(bytes.data() + 1, original->bytes.data(), original->bytes.size());
        view = *original;
        view.bytes = std::span(bytes).subspan(1);
        return &view;
      }
      std::string name() const override { return "shifted"; }

     private:
      const WeightSource& source_;
      mutable std::map<std::string, std::pair<std::vector<std::byte>, TensorView>> copies_;
    };
    const Shifted shifted(weights);
    struct Keys final : PrefillSink {
      void layer(const LayerChunk& chunk) override {
        for (size_t i = 0; i < chunk.key.rows(); ++i)
          keys.insert(keys.end(), chunk.key.row(i).begin(), chunk.key.row(i).end());
      }
      std::vector<float> keys;
    } straight, odd;
    LlamaModel(config, weights).prefill({tokens, offsets}, {}, straight);
    LlamaModel(config, shifted).prefill({tokens, offsets}, {}, odd);
    CHECK_EQ(straight.keys, odd.keys);
  }
}

TEST_CASE("forward pass: tensors that are missing or of another shape are refused by name") {
  const ModelConfig config = small_config();
  const auto load_without = [&](const std::string& name) {
    WeightsInMemory weights = test::random_weights(config, DType::f32, 1);
    weights.remove(name);
    return message_of([&] { LlamaModel(config, weights); });
  };
  CHECK_EQ(load_without("model.layers.1.mlp.up_proj.weight"),
           "weights in memory: tensor 'model.layers.1.mlp.up_proj.weight' is missing; it must have shape "
           "[24, 16]");
  CHECK_EQ(load_without("model.norm.weight"),
           "weights in memory: tensor 'model.norm.weight' is missing; it must have shape [16]");
  WeightsInMemory weights = test::random_weights(config, DType::f32, 1);
  weights.add("model.layers.0.self_attn.k_proj.weight", DType::f32, {8, 16}, std::vector<float>(128));
  CHECK_EQ(message_of([&] { LlamaModel(config, weights); }),
           "tensor 'model.layers.0.self_attn.k_proj.weight' in memory: shape is [8, 16]; the configuration "
           "makes it [16, 16]");

  // Without an output matrix there are keys and values, but no logits.
  weights = test::random_weights(config, DType::f32, 1);
  weights.remove("lm_head.weight");
  const LlamaModel bare(config, weights);
  const std::vector<uint32_t> tokens = {1, 2};
  const std::vector<uint64_t> offsets = {0, 2};
  Nowhere sink;
  PrefillOptions options;
  CHECK_NOTHROW(bare.prefill({tokens, offsets}, options, sink));
  options.logits = LogitRows::all;
  CHECK_EQ(message_of([&] {
             bare.prefill({tokens, offsets}, options, sink);
           }),
           "weights in memory: tensor 'lm_head.weight' is missing; logits need it");

  // With tied embeddings the bias alone is the head's own.
  ModelConfig tied = config;
  tied.tied_embeddings = tied.head_bias = true;
  weights = test::random_weights(tied, DType::f32, 1);
  const LlamaModel biasless(tied, weights);
  CHECK_EQ(message_of([&] {
             biasless.prefill({tokens, offsets}, options, sink);
           }),
           "weights in memory: tensor 'lm_head.bias' is missing; logits need it");
}

TEST_CASE("forward pass: an error of the sink ends the run, progress counts to the end") {
  const ModelConfig config = small_config();
  const WeightsInMemory weights = test::random_weights(config, DType::f32, 1);
  const LlamaModel model(config, weights);
  Rng rng(33);
  const std::vector<uint32_t> tokens = random_tokens(40, rng);
  const std::vector<uint64_t> offsets = {0, 10, 40};
  struct Full final : PrefillSink {
    void layer(const LayerChunk& chunk) override {
      if (chunk.layer == 1) throw failed("disk full");
    }
  } full;
  CHECK_EQ(message_of([&] { model.prefill({tokens, offsets}, {}, full); }), "disk full");
  Nowhere sink;
  PrefillOptions options;
  options.chunk = 16;
  std::vector<double> reports;
  model.prefill({tokens, offsets}, options, sink, [&](double done, double total, std::string_view) {
    CHECK_EQ(total, 40);
    if (!reports.empty()) CHECK_GT(done, reports.back());
    reports.push_back(done);
  });
  CHECK_EQ(reports.size(), 6);
  CHECK_EQ(reports.back(), 40);
}

TEST_CASE("weights: rows in runs and matrices that are stored transposed") {
  Rng rng(37);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name_of(type));
    std::vector<float> values(2 * 12 * 6);
    for (float& value : values) value = static_cast<float>(rng.normal());
    WeightsInMemory weights;
    weights.add("w", type, {24, 6}, values);
    weights.add("stacked", type, {2, 12, 6}, values);
    const TensorView &whole = *weights.find("w"), &stacked = *weights.find("stacked");
    values = read_floats(whole);

    const TensorView runs = rows_of(whole, {2, 9, 3, 7});  // rows 2 3 4, 9 10 11, 16 17 18
    CHECK_EQ(runs.shape, std::vector<uint64_t>{9, 6});
    const std::vector<float> found = read_floats(runs);
    const size_t rows[] = {2, 3, 4, 9, 10, 11, 16, 17, 18};
    for (size_t i = 0; i < 9; ++i)
      for (size_t j = 0; j < 6; ++j) CHECK_EQ(found[i * 6 + j], values[rows[i] * 6 + j]);
    CHECK(rows_of(whole, {5, 4, 4, 4}).rows_in_order());
    CHECK_THROWS_AS(rows_of(whole, {2, 9, 3, 11}), Error);
    CHECK_THROWS_AS(rows_of(runs, {0, 1, 1, 1}), Error);

    // The odd columns of the second of two (12, 6) matrices, as rows.
    const TensorView turned = matrix_of(stacked, 3, 12, {72 + 1, 2, 6});
    CHECK_FALSE(turned.rows_in_order());
    CHECK_EQ(floats_in_place(turned), nullptr);
    std::vector<float> part(20);
    read_floats(turned, 7, part);
    for (size_t i = 0; i < part.size(); ++i) {
      const size_t row = (7 + i) / 12, column = (7 + i) % 12;
      CHECK_EQ(part[i], values[72 + 1 + row * 2 + column * 6]);
    }
    CHECK_THROWS_AS(matrix_of(stacked, 3, 12, {72 + 2, 2, 6}), Error);
    // One run of its rows has their values; several runs, or one beyond its end, cannot be taken.
    const std::vector<float> all = read_floats(turned);
    CHECK_EQ(read_floats(rows_of(turned, {1, 2, 2, 2})), std::vector<float>(all.begin() + 12, all.end()));
    CHECK_EQ(read_floats(rows_of(turned, {0, 3, 3, 3})), all);
    CHECK_THROWS_AS(rows_of(turned, {0, 2, 1, 2}), Error);
    CHECK_THROWS_AS(rows_of(turned, {2, 2, 2, 2}), Error);
  }
}

TEST_CASE("models: each part that Llama's family lacks is found by itself") {
  const ModelConfig plain = test::make_config(2, 16, 24, 4, 2, 8);
  CHECK_EQ(beyond_llama(plain), "");
  ModelConfig all = plain;
  test::switch_all_on(all);
  CHECK_EQ(beyond_llama(all), "");
  using Change = std::function<void(ModelConfig&)>;
  const Change changes[] = {
      [](ModelConfig& c) {
        c.layer_rope = {LayerRope::usual, LayerRope::none};
      },
      [](ModelConfig& c) {
        c.layer_rope = {LayerRope::local, LayerRope::usual};
      },
      [](ModelConfig& c) { c.rope.dims = 4; },
      [](ModelConfig& c) { c.rope.scaling.kind = RopeScaling::Kind::longrope; },
      [](ModelConfig& c) { c.rope.scaling.kind = RopeScaling::Kind::yarn; },
      [](ModelConfig& c) { c.norm = NormKind::layer; },
      [](ModelConfig& c) { c.qk_norm = QkNorm::whole; },
      [](ModelConfig& c) { c.names.attention_norm = ""; },
      [](ModelConfig& c) { c.names.mlp_norm = ""; },
      [](ModelConfig& c) { c.names.attention_out_norm = "norm"; },
      [](ModelConfig& c) { c.names.mlp_out_norm = "norm"; },
      [](ModelConfig& c) { c.head_bias = true; },
      [](ModelConfig& c) { c.names.positions = "wpe"; },
      [](ModelConfig& c) { c.gated_mlp = false; },
      [](ModelConfig& c) { c.activation = Activation::gelu; },
      [](ModelConfig& c) { c.activation = Activation::gelu_tanh; },
      [](ModelConfig& c) { c.mixture.experts = 2; },
      [](ModelConfig& c) { c.parallel_residual = true; },
      [](ModelConfig& c) { c.embedding_scale = 2; },
      [](ModelConfig& c) { c.attention_scale = 1; },
      [](ModelConfig& c) { c.residual_scale = 0.5; },
      [](ModelConfig& c) { c.logit_scale = 0.5; },
      [](ModelConfig& c) { c.attention_softcap = 50; },
      [](ModelConfig& c) { c.logit_softcap = 30; },
      [](ModelConfig& c) { c.names.sinks = "sinks"; },
      [](ModelConfig& c) { c.rope.scaling.kind = RopeScaling::Kind::proportional; },
      [](ModelConfig& c) { c.local_kv_heads = 4, c.local_head_dim = 4; },
      [](ModelConfig& c) { c.shared_layers = 1; },
      [](ModelConfig& c) { c.value_norm = true; },
      [](ModelConfig& c) { c.keys_make_values = true; },
      [](ModelConfig& c) {
        c.token_inputs = {4, 100};
      },
      [](ModelConfig& c) { c.names.layer_scale = "scale"; },
  };
  for (const Change& change : changes) {
    ModelConfig config = plain;
    change(config);
    CHECK_NE(beyond_llama(config), "");
  }
}

TEST_CASE("memory of a prefill: grows with what it depends on") {
  const ModelConfig config = test::make_config(30, 4096, 14336, 32, 8, 128);
  PrefillOptions options;
  const auto bytes = [&](uint64_t tokens, uint64_t longest, int threads) {
    return prefill_bytes(config, options, tokens, longest, threads);
  };
  // Hidden state, one layer's keys and values, position; rotary table.
  CHECK_EQ(bytes(5001, 3000, 2) - bytes(5000, 3000, 2), 4 * (4096 + 2 * 1024) + 24);
  CHECK_EQ(bytes(5000, 3001, 2) - bytes(5000, 3000, 2), 4 * 128);
  CHECK_GT(bytes(5000, 3000, 3), bytes(5000, 3000, 2));
  const uint64_t plain = bytes(5000, 3000, 2);
  options.before_rope = true;
  CHECK_EQ(bytes(5000, 3000, 2) - plain, 4 * 1024 * 1024);
  options.queries = true;
  CHECK_EQ(bytes(5000, 3000, 2) - plain, 4 * 1024 * (4096 + 1024));
  options.before_rope = false;
  CHECK_EQ(bytes(5000, 3000, 2), plain);
  options.logits = LogitRows::all;
  CHECK_GT(bytes(5000, 3000, 2), plain);
}

TEST_CASE("rotary frequencies: plain, linear and llama3 scaling follow their formulas") {
  ModelConfig config = small_config();
  config.head_dim = 128;
  config.rope.theta = 500000;
  const std::vector<float> plain = rope_frequencies(config.rope, config.head_dim);
  REQUIRE_EQ(plain.size(), 64);
  CHECK_EQ(plain[0], 1.0f);
  for (size_t j = 0; j < 64; ++j)
    CHECK_LE(std::abs(plain[j] / std::pow(500000.0, -2.0 * double(j) / 128) - 1), 3e-7);

  config.rope.scaling.kind = RopeScaling::Kind::linear;
  config.rope.scaling.factor = 4;
  const std::vector<float> linear = rope_frequencies(config.rope, config.head_dim);
  for (size_t j = 0; j < 64; ++j) CHECK_EQ(linear[j], plain[j] / 4);

  config.rope.scaling = {RopeScaling::Kind::llama3, 8, 1, 4, 8192};
  const std::vector<float> llama3 = rope_frequencies(config.rope, config.head_dim);
  int kept = 0, divided = 0, blended = 0;
  for (size_t j = 0; j < 64; ++j) {
    const double wavelength = 2 * std::numbers::pi / plain[j];
    if (wavelength < 8192.0 / 4) {
      CHECK_EQ(llama3[j], plain[j]);
      ++kept;
    } else if (wavelength > 8192.0 / 1) {
      CHECK_EQ(llama3[j], plain[j] / 8);
      ++divided;
    } else {
      const double smooth = (8192.0 / wavelength - 1) / (4 - 1);
      const double expected = (1 - smooth) * plain[j] / 8 + smooth * plain[j];
      CHECK_LE(std::abs(llama3[j] / expected - 1), 1e-6);
      ++blended;
    }
  }
  CHECK_GT(kept, 20);
  CHECK_GT(divided, 10);
  CHECK_GT(blended, 2);
}

TEST_CASE("rotary table: turns pairs half a head apart, keeps their length, and position 0 turns nothing") {
  ModelConfig config = small_config();
  config.head_dim = 6;
  const RopeTable table(config.rope, config.head_dim, 200);
  const std::vector<float> frequencies = rope_frequencies(config.rope, config.head_dim);
  for (const size_t position : {0, 1, 7, 199})
    for (size_t j = 0; j < 3; ++j) {
      const double angle = double(static_cast<float>(position) * frequencies[j]);
      CHECK_LE(std::abs(table.cosines(position)[j] - std::cos(angle)), 1e-7);
      CHECK_LE(std::abs(table.sines(position)[j] - std::sin(angle)), 1e-7);
    }
  std::vector<float> head = {1, 2, 3, 4, 5, 6};
  const std::vector<float> before = head;
  table.turn(0, head);
  CHECK_EQ(head, before);
  table.turn(7, head);
  for (size_t j = 0; j < 3; ++j) {
    const double angle = double(7.0f * frequencies[j]);
    CHECK_LE(std::abs(head[j] - (before[j] * std::cos(angle) - before[j + 3] * std::sin(angle))), 2e-6);
    CHECK_LE(std::abs(head[j + 3] - (before[j + 3] * std::cos(angle) + before[j] * std::sin(angle))), 2e-6);
  }
}

TEST_CASE("model sizes: what does not fit together is refused by name") {
  CHECK_NOTHROW(check(small_config()));
  const auto refused = [](const std::function<void(ModelConfig&)>& spoil) {
    ModelConfig config = small_config();
    spoil(config);
    return message_of([&] { check(config); });
  };
  using C = ModelConfig;
  CHECK_EQ(refused([](C& c) { c.num_layers = 0; }), "num_hidden_layers is 0; it must be in 1..4096");
  CHECK_EQ(refused([](C& c) { c.hidden_size = -1; }), "hidden_size is -1; it must be in 1..1048576");
  CHECK_EQ(refused([](C& c) { c.intermediate_size = 0; }),
           "intermediate_size is 0; it must be in 1..1048576");
  CHECK_EQ(refused([](C& c) { c.num_q_heads = 0; }), "num_attention_heads is 0; it must be in 1..16384");
  CHECK_EQ(refused([](C& c) { c.num_kv_heads = 1 << 20; }),
           "num_key_value_heads is 1048576; it must be in 1..16384");
  CHECK_EQ(refused([](C& c) { c.vocabulary_size = 0; }), "vocab_size is 0; it must be in 1..16777216");
  CHECK_EQ(refused([](C& c) { c.num_kv_heads = 3; }),
           "num_attention_heads is 4; it must be a multiple of num_key_value_heads (3)");
  CHECK_EQ(refused([](C& c) { c.head_dim = 7; }),
           "head_dim is 7; rotary embeddings turn pairs, so it must be even");
  CHECK_EQ(refused([](C& c) { c.norm_epsilon = -1; }), "rms_norm_eps is -1; it must be 0 or positive");
  CHECK_EQ(refused([](C& c) { c.rope.theta = 0; }), "rope_theta is 0; it must be positive");
  CHECK_EQ(refused([](C& c) { c.rope.theta = 1e39; }), "rope_theta is 1e+39; it is beyond float");
  CHECK_EQ(refused([](C& c) {
             c.rope.scaling = {RopeScaling::Kind::linear, 0, 1, 4, 8192};
           }),
           "rope scaling factor is 0; it must be positive");
  CHECK_EQ(refused([](C& c) {
             c.rope.scaling = {RopeScaling::Kind::llama3, 8, 4, 4, 8192};
           }),
           "high_freq_factor is 4; it must be greater than low_freq_factor (4)");
  CHECK_EQ(refused([](C& c) {
             c.rope.scaling = {RopeScaling::Kind::llama3, 8, 1, 4, 0};
           }),
           "original_max_position_embeddings is 0; it must be positive");
  CHECK_EQ(refused([](C& c) { c.window = {0}; }), "1 layers have a window size; there are 2 layers");
  CHECK_EQ(refused([](C& c) { c.window = {0, -3}; }), "sliding_window is -3; it must be positive or null");
}

}  // namespace model_test
