// The closed loop on the demo model against transformers: fixtures and their description in
// make_loop_fixtures.py.
#include <cmath>
#include <string>
#include <vector>

#include "formats/io/json_file.hpp"
#include "formats/models/model_config.hpp"
#include "formats/models/safetensors.hpp"
#include "lib/codec/model_layers.hpp"
#include "lib/codec/registry.hpp"
#include "lib/pipeline/closed_loop.hpp"
#include "test/test.hpp"

namespace loop_test {

using namespace kvcodec;

namespace {

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

}  // namespace

TEST_CASE("closed loop: models with latent attention, or layers without any, go on from what codecs keep") {
  for (const std::string name :
       {"deepseek_v2-2", "deepseek_v3-long", "qwen3_next-1", "qwen3_5-1", "lfm2-1"}) {
    CAPTURE(name);
    const std::string folder = test::source_dir() + "/test/golden/model/" + name;
    const ModelDescription description = read_model_config(folder);
    const Safetensors weights = Safetensors::open_model(folder);
    const ModelConfig& config = description.config;
    const LlamaModel model(config, weights);
    LoopDocument document{{}, 120};
    for (uint32_t i = 0; i < 160; ++i) document.tokens.push_back(i * i * 7 % 64);
    std::vector<std::unique_ptr<Codec>> codecs;
    std::vector<LoopSetting> settings;
    for (const char* codec : {"none", "q4", "kivi", "lossless"}) {
      const bool none = codec == std::string_view("none");
      codecs.push_back(codec_from_record(find_codec(codec), {},
                                         {.num_layers = config.num_layers,
                                          .heads = config.num_kv_heads,
                                          .head_dim = config.head_dim,
                                          .layer_shapes = layer_shapes_of(config),
                                          .storage = none ? DType::f32 : DType::bf16}));
      settings.push_back({codecs.back().get(), none ? DType::f32 : DType::bf16, {}});
    }
    const LoopResult result = ClosedLoop(model, settings, {}).run({&document, 1}).front();
    const double n = 39;  // judged
    CHECK_LE(std::abs(result.settings[0].sums.surprise - result.reference.sums.surprise) / n, 1e-5);
    CHECK_LE(result.settings[0].sums.divergence / n, 1e-7);
    for (const size_t lossy : {1, 2, 3}) {
      CHECK_GT(result.settings[lossy].sums.divergence, 0);
      CHECK_LT(result.settings[lossy].sums.divergence / n, 0.5);
    }
    // Only keys are stored of latent attention, and nothing of layers without it.
    uint64_t values = 0;
    for (const LayerShape& shape : layer_shapes_of(config)) values += 120 * shape.width();
    for (const LoopScore& score : result.settings) CHECK_EQ(score.stored.values, values);
    CHECK_EQ(result.settings[0].stored.bits(), 32 * values);
  }
}

TEST_CASE("closed loop: what lies before a layer's window need not go through a codec") {
  for (const std::string name : {"gemma2-1", "gpt_oss-1", "mistral-4"}) {
    CAPTURE(name);
    const std::string folder = test::source_dir() + "/test/golden/model/" + name;
    const ModelDescription description = read_model_config(folder);
    const Safetensors weights = Safetensors::open_model(folder);
    const ModelConfig& config = description.config;
    const LlamaModel model(config, weights);
    LoopDocument document{{}, 60};
    for (uint32_t i = 0; i < 90; ++i) document.tokens.push_back(i * i * 7 % 64);
    // Each token's codes depend only on its own values.
    std::vector<std::unique_ptr<Codec>> codecs;
    std::vector<LoopSetting> settings;
    for (const char* codec : {"none", "q4", "fp8"}) {
      codecs.push_back(codec_from_record(find_codec(codec), {},
                                         {.num_layers = config.num_layers,
                                          .heads = config.num_kv_heads,
                                          .head_dim = config.head_dim,
                                          .layer_shapes = layer_shapes_of(config)}));
      settings.push_back({codecs.back().get(), DType::bf16, {}});
    }
    const auto run = [&](WindowLayers window_layers, size_t stream) {
      return ClosedLoop(model, settings, {.stream = stream, .window_layers = window_layers})
          .run({&document, 1})
          .front();
    };
    for (const size_t stream : {0, 7}) {
      const LoopResult whole = run(WindowLayers::keep, stream), trimmed = run(WindowLayers::trim, stream);
      uint64_t left_out = 0;
      for (const int64_t window : config.window)
        if (window > 0) left_out += 60 - std::min<uint64_t>(60, static_cast<uint64_t>(window));
      REQUIRE_GT(left_out, 0);
      for (const size_t setting : {0, 1}) {
        const LoopScore &a = whole.settings[setting], &b = trimmed.settings[setting];
        // Keys that a query does not see may affect the number that is subtracted from scores before exp().
        CHECK_LE(std::abs(a.sums.surprise - b.sums.surprise), 1e-6 * a.sums.surprise);
        CHECK_LE(std::abs(a.sums.divergence - b.sums.divergence), 1e-4 * a.sums.divergence);
        CHECK_GT(a.sums.divergence, 0);
        CHECK_EQ(a.stored.values - b.stored.values, left_out * static_cast<uint64_t>(config.cache_width()));
        CHECK_LT(b.stored.bits(), a.stored.bits());
      }
      // Scales of fp8 belong to the whole document: other documents have other scales.
      CHECK_EQ(trimmed.settings[2].stored.values, trimmed.settings[1].stored.values);
    }
  }
}

TEST_CASE("closed loop: likelihoods and divergences of the demo model are those of transformers") {
  const std::string folder = test::source_dir() + "/data/demo-model";
  const ModelDescription description = read_model_config(folder);
  const Safetensors weights = Safetensors::open_model(folder);
  const LlamaModel model(description.config, weights);
  const nlohmann::json fixture =
      read_json_object(test::source_dir() + "/test/golden/loop/demo-model.json", uint64_t{1} << 22);
  std::vector<LoopDocument> documents;
  for (const auto& document : fixture["documents"])
    documents.push_back({document["tokens"].get<std::vector<uint32_t>>(), document["prefix"].get<size_t>()});

  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
  std::vector<std::unique_ptr<Codec>> codecs;
  std::vector<LoopSetting> settings;
  for (const DType type : kTypes) {
    codecs.push_back(codec_from_record(find_codec("none"), {},
                                       {.num_layers = description.config.num_layers,
                                        .heads = description.config.num_kv_heads,
                                        .head_dim = description.config.head_dim,
                                        .storage = type}));
    settings.push_back({codecs.back().get(), type, {}});
  }
  const auto results = ClosedLoop(model, settings, {}).run(documents);
  for (size_t i = 0; i < documents.size(); ++i) {
    CAPTURE(i);
    const auto& document = fixture["documents"][i];
    const auto n = static_cast<double>(documents[i].tokens.size() - 1 - documents[i].prefix);
    const double reference = sum(document["reference"].get<std::vector<double>>()) / n;
    // 1e-4 is the promised bound; float arithmetic in another order gives about 1e-6.
    CHECK_LE(std::abs(results[i].reference.sums.surprise / n - reference), 1e-5);
    CHECK_LE(std::abs(results[i].settings[0].sums.surprise / n - reference), 1e-5);
    CHECK_LE(results[i].settings[0].sums.divergence / n, 1e-7);
    for (const size_t type : {1, 2}) {
      const auto& expected = document[std::string(name_of(kTypes[type]))];
      const double nll = sum(expected["nll"].get<std::vector<double>>()) / n;
      const double kl = sum(expected["kl"].get<std::vector<double>>()) / n;
      CHECK_LE(std::abs(results[i].settings[type].sums.surprise / n - nll), 1e-4);
      // Keys that lie on the border of two 16-bit values may be rounded to either.
      CHECK_LE(std::abs(results[i].settings[type].sums.divergence / n - kl), 0.1 * kl + 1e-7);
    }
  }
}

}  // namespace loop_test
