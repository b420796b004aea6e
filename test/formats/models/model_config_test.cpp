#include "formats/models/model_config.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "formats/io/json_file.hpp"
#include "formats/models/family.hpp"
#include "formats/models/key_rope.hpp"
#include "lib/core/error.hpp"
#include "test/test.hpp"

namespace model_config_test {

using namespace kvcodec;

namespace {

nlohmann::json llama() {
  return nlohmann::json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 100,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": null,
    "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16", "attention_bias": false})");
}

nlohmann::json of_family(const char* architecture, const char* type) {
  nlohmann::json config = llama();
  config["architectures"] = {architecture};
  config["model_type"] = type;
  return config;
}
nlohmann::json mistral() { return of_family("MistralForCausalLM", "mistral"); }
nlohmann::json qwen2() { return of_family("Qwen2ForCausalLM", "qwen2"); }
nlohmann::json qwen3() { return of_family("Qwen3ForCausalLM", "qwen3"); }

using Change = std::function<void(nlohmann::json&)>;

ModelDescription parse(nlohmann::json config, const Change& change = {}) {
  if (change) change(config);
  return parse_model_config(config.dump(), "config.json");
}

/// The message with which the changed configuration is refused, without the file's name, which it must begin
/// with.
std::string refused(nlohmann::json config, const Change& change) {
  try {
    parse(std::move(config), change);
  } catch (const Error& error) {
    CHECK_EQ(error.kind(), ErrorKind::bad_input);
    const std::string message = error.what();
    CHECK_EQ(message.find('\n'), std::string::npos);
    CHECK(message.starts_with("config.json: "));
    return message.substr(std::min<size_t>(message.size(), 13));
  }
  return "accepted";
}

using J = nlohmann::json;

}  // namespace

TEST_CASE("config.json: a Llama model, and its defaults") {
  const ModelDescription description = parse(llama());
  const ModelConfig& config = description.config;
  CHECK_EQ(config.family, "llama");
  CHECK_EQ(config.num_layers, 3);
  CHECK_EQ(config.hidden_size, 64);
  CHECK_EQ(config.intermediate_size, 128);
  CHECK_EQ(config.num_q_heads, 8);
  CHECK_EQ(config.num_kv_heads, 2);
  CHECK_EQ(config.head_dim, 8);
  CHECK_EQ(config.vocabulary_size, 100);
  CHECK_EQ(config.max_positions, 2048);
  CHECK_EQ(config.norm_epsilon, 1e-5);
  CHECK_EQ(config.rope.theta, 500000);
  CHECK_EQ(config.rope.scaling.kind, RopeScaling::Kind::none);
  CHECK_FALSE(config.qkv_bias);
  CHECK_FALSE(config.output_bias);
  CHECK_FALSE(config.mlp_bias);
  CHECK(config.qk_norm == QkNorm::none);
  CHECK_FALSE(config.tied_embeddings);
  CHECK_EQ(config.window, std::vector<int64_t>{0, 0, 0});
  CHECK_EQ(description.dtype, DType::bf16);
  CHECK_EQ(description.rope_scaling, "");

  const ModelDescription bare = parse(llama(), [](J& c) {
    for (const char* name :
         {"model_type", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta",
          "rope_scaling", "hidden_act", "tie_word_embeddings", "torch_dtype", "attention_bias"})
      c.erase(name);
  });
  CHECK_EQ(bare.config.num_kv_heads, 8);
  CHECK_EQ(bare.config.norm_epsilon, 1e-6);
  CHECK_EQ(bare.config.rope.theta, 10000);
  CHECK_EQ(bare.dtype, DType::f32);
}

TEST_CASE("config.json: biases and normalisations of each family") {
  const auto biases = [](const ModelDescription& d) {
    const ModelConfig& c = d.config;
    return std::vector<bool>{c.qkv_bias, c.output_bias, c.mlp_bias, c.qk_norm == QkNorm::heads};
  };
  using B = std::vector<bool>;
  CHECK_EQ(biases(parse(llama(), [](J& c) { c["attention_bias"] = true; })), B{true, true, false, false});
  CHECK_EQ(biases(parse(llama(), [](J& c) { c["mlp_bias"] = true; })), B{false, false, true, false});
  CHECK_EQ(biases(parse(mistral())), B{false, false, false, false});
  CHECK_EQ(biases(parse(qwen2())), B{true, false, false, false});
  CHECK_EQ(biases(parse(qwen3())), B{false, false, false, true});
  CHECK_EQ(biases(parse(qwen3(), [](J& c) { c["attention_bias"] = true; })), B{true, true, false, true});
  CHECK_EQ(refused(mistral(), [](J& c) { c["attention_bias"] = true; }),
           "attention_bias is true; mistral models have none to switch");
  CHECK_EQ(refused(qwen3(), [](J& c) { c["mlp_bias"] = true; }), "mlp_bias is true; qwen3 models have none");
}

TEST_CASE("config.json: head sizes") {
  CHECK_EQ(parse(llama(), [](J& c) { c["head_dim"] = 32; }).config.head_dim, 32);
  CHECK_EQ(parse(mistral(), [](J& c) { c["head_dim"] = nullptr; }).config.head_dim, 8);
  CHECK_EQ(parse(qwen3()).config.head_dim, 128);
  // A given head_dim need not divide the hidden size.
  CHECK_EQ(parse(llama(), [](J& c) { c["head_dim"] = 10, c["num_attention_heads"] = 6; }).config.head_dim,
           10);
  CHECK_EQ(refused(llama(), [](J& c) { c["num_attention_heads"] = 6; }),
           "hidden_size is 64; without head_dim it must be a multiple of num_attention_heads (6)");
  CHECK_EQ(refused(llama(), [](J& c) { c["num_attention_heads"] = 0; }),
           "hidden_size is 64; without head_dim it must be a multiple of num_attention_heads (0)");
  CHECK_EQ(refused(llama(), [](J& c) { c["num_key_value_heads"] = 3; }),
           "num_attention_heads is 8; it must be a multiple of num_key_value_heads (3)");
  CHECK_EQ(refused(llama(), [](J& c) { c["head_dim"] = 9; }),
           "head_dim is 9; rotary embeddings turn pairs, so it must be even");
}

TEST_CASE("config.json: rotary scaling in its three spellings") {
  const J linear = {{"type", "linear"}, {"factor", 2.5}};
  ModelDescription d = parse(llama(), [&](J& c) { c["rope_scaling"] = linear; });
  CHECK_EQ(d.config.rope.scaling.kind, RopeScaling::Kind::linear);
  CHECK_EQ(d.config.rope.scaling.factor, 2.5);
  CHECK_EQ(d.config.rope.theta, 500000);
  CHECK_EQ(d.rope_scaling, R"({"factor":2.5,"type":"linear"})");

  J llama3 = {{"rope_type", "llama3"},
              {"factor", 8},
              {"low_freq_factor", 1.0},
              {"high_freq_factor", 4.0},
              {"original_max_position_embeddings", 8192}};
  d = parse(llama(), [&](J& c) { c["rope_scaling"] = llama3; });
  CHECK_EQ(d.config.rope.scaling.kind, RopeScaling::Kind::llama3);
  CHECK_EQ(d.config.rope.scaling.factor, 8);
  CHECK_EQ(d.config.rope.scaling.low_frequency_factor, 1);
  CHECK_EQ(d.config.rope.scaling.high_frequency_factor, 4);
  CHECK_EQ(d.config.rope.scaling.original_positions, 8192);
  llama3.erase("original_max_position_embeddings");
  d = parse(llama(), [&](J& c) { c["rope_scaling"] = llama3; });
  CHECK_EQ(d.config.rope.scaling.original_positions, 2048);

  J parameters = {{"rope_theta", 7000.0}, {"rope_type", "default"}};
  d = parse(llama(), [&](J& c) { c.erase("rope_theta"), c["rope_parameters"] = parameters; });
  CHECK_EQ(d.config.rope.theta, 7000);
  CHECK_EQ(d.config.rope.scaling.kind, RopeScaling::Kind::none);
  CHECK_EQ(d.rope_scaling, "");
  parameters["rope_type"] = "linear", parameters["factor"] = 3;
  d = parse(llama(), [&](J& c) { c.erase("rope_theta"), c["rope_parameters"] = parameters; });
  CHECK_EQ(d.config.rope.scaling.factor, 3);
  CHECK_EQ(d.rope_scaling, R"({"factor":3,"rope_theta":7000.0,"rope_type":"linear"})");
  CHECK_EQ(parse(llama(),
                 [&](J& c) {
                   c["rope_scaling"] = {{"type", "linear"}, {"rope_type", "linear"}, {"factor", 2}};
                 })
               .config.rope.scaling.factor,
           2);
}

TEST_CASE("config.json: rotary scaling that is refused") {
  const auto with = [](J scaling) { return refused(llama(), [&](J& c) { c["rope_scaling"] = scaling; }); };
  for (const std::string type : {"dynamic", "ntk", "proportional"})
    CHECK_EQ(with({{"type", type}, {"factor", 2}}),
             "rope_scaling is of type '" + type +
                 "'; supported are 'default', 'linear', 'llama3', 'yarn' and " + "'longrope'");
  CHECK_EQ(with({{"type", "linear"}}), "factor is missing; it must be a number");
  CHECK_EQ(with({{"type", "linear"}, {"factor", "2"}}), "factor is \"2\"; it must be a number");
  CHECK_EQ(with({{"type", "linear"}, {"factor", -2}}), "rope scaling factor is -2; it must be positive");
  CHECK_EQ(with({{"type", "linear"}, {"rope_type", "llama3"}, {"factor", 2}}),
           "rope_scaling says both rope_type 'llama3' and type 'linear'");
  CHECK_EQ(with({{"rope_type", "llama3"}, {"factor", 8}, {"high_freq_factor", 4}}),
           "low_freq_factor is missing; it must be a number");
  CHECK_EQ(with({{"rope_type", "llama3"}, {"factor", 8}, {"high_freq_factor", 1}, {"low_freq_factor", 1}}),
           "high_freq_factor is 1; it must be greater than low_freq_factor (1)");
  CHECK_EQ(with("linear"), "rope_scaling is \"linear\"; it must be null or an object");
  CHECK_EQ(refused(llama(), [](J& c) { c["partial_rotary_factor"] = 0.5; }),
           "partial_rotary_factor is 0.5; only 1 is supported for llama (the whole head is turned)");
  CHECK_EQ(refused(llama(),
                   [](J& c) {
                     c["rope_parameters"] = {{"full_attention", {{"rope_theta", 1.0}}}};
                   }),
           "rope_parameters differ by layer type ('full_attention'); one set for all layers is supported");
  CHECK_EQ(refused(llama(), [](J& c) { c["rope_theta"] = 0; }), "rope_theta is 0; it must be positive");
}

TEST_CASE("config.json: sliding windows of each family") {
  const auto windows = [](J config, const Change& change) {
    return parse(std::move(config), change).config.window;
  };
  using W = std::vector<int64_t>;
  CHECK_EQ(windows(mistral(), [](J& c) { c["sliding_window"] = 16; }), W{16, 16, 16});
  CHECK_EQ(windows(mistral(), [](J& c) { c["sliding_window"] = nullptr; }), W{0, 0, 0});
  CHECK_EQ(windows(mistral(), {}), W{4096, 4096, 4096});  // as transformers has it where nothing is said
  CHECK_EQ(windows(llama(), [](J& c) { c["sliding_window"] = 16; }), W{0, 0, 0});
  const auto sliding = [](J& c) { c["use_sliding_window"] = true, c["sliding_window"] = 20; };
  CHECK_EQ(windows(qwen2(), [](J& c) { c["sliding_window"] = 20; }), W{0, 0, 0});
  CHECK_EQ(windows(qwen2(), sliding), W{0, 0, 0});  // max_window_layers is 28 where nothing is said
  CHECK_EQ(windows(qwen2(), [&](J& c) { sliding(c), c["max_window_layers"] = 1; }), W{0, 20, 20});
  CHECK_EQ(
      windows(qwen3(),
              [&](J& c) {
                sliding(c), c["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
              }),
      W{20, 0, 20});
  CHECK_EQ(windows(mistral(),
                   [](J& c) {
                     c["sliding_window"] = 5,
                     c["layer_types"] = {"sliding_attention", "sliding_attention", "sliding_attention"};
                   }),
           W{5, 5, 5});
  CHECK_EQ(refused(mistral(), [](J& c) { c["sliding_window"] = 0; }),
           "sliding_window is 0; it must be positive or null");
  CHECK_EQ(refused(mistral(),
                   [](J& c) {
                     c["sliding_window"] = 5,
                     c["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
                   }),
           "layer_types says 'full_attention' for layer 1; a mistral model with that sliding_window has the "
           "same attention in "
           "all layers");
  CHECK_EQ(refused(qwen3(),
                   [](J& c) {
                     c["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
                   }),
           "layer_types has 'sliding_attention', but no sliding_window is in use");
  for (const J& types :
       {J{"full_attention"}, J{"full_attention", "chunked_attention", "full_attention"}, J("none")})
    CHECK_EQ(refused(qwen3(), [&](J& c) { c["layer_types"] = types; }),
             "layer_types must list 'full_attention' or 'sliding_attention' for each of 3 layers");
}

TEST_CASE("config.json: yarn and longrope, with what the reference makes of what is not said") {
  const J yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  ModelDescription d = parse(llama(), [&](J& c) { c["rope_scaling"] = yarn; });
  const RopeScaling& scaling = d.config.rope.scaling;
  CHECK_EQ(scaling.kind, RopeScaling::Kind::yarn);
  CHECK_EQ(scaling.original_positions, 2048);
  CHECK_EQ(scaling.fast_turns, 32);
  CHECK_EQ(scaling.slow_turns, 1);
  CHECK(scaling.attention_factor == doctest::Approx(1 + 0.1 * std::log(4)));
  CHECK_EQ(nlohmann::json::parse(d.rope_scaling).at("attention_factor"), scaling.attention_factor);
  CHECK_EQ(nlohmann::json::parse(d.rope_scaling).at("original_max_position_embeddings"), 2048);
  CHECK_EQ(nlohmann::json::parse(d.rope_scaling).at("beta_fast"), 32);

  J longrope = {{"type", "su"}, {"short_factor", {1, 1, 1, 1.5}}, {"long_factor", {2, 3, 4, 5}}};
  const auto phi = [&](const Change& change) {
    return refused(of_family("Phi3ForCausalLM", "phi3"), [&](J& c) {
      c["original_max_position_embeddings"] = 512;
      change(c);
    });
  };
  d = parse(of_family("Phi3ForCausalLM", "phi3"), [&](J& c) {
    c["original_max_position_embeddings"] = 512;
    c["rope_scaling"] = longrope;
  });
  CHECK_EQ(d.config.rope.scaling.kind, RopeScaling::Kind::longrope);
  CHECK_EQ(d.config.rope.scaling.factor, 4);
  CHECK(d.config.rope.scaling.attention_factor ==
        doctest::Approx(std::sqrt(1 + std::log(4) / std::log(512))));
  CHECK_EQ(d.config.rope.scaling.divisors, std::vector<float>{1, 1, 1, 1.5});
  CHECK_EQ(d.config.rope.scaling.long_divisors, std::vector<float>{2, 3, 4, 5});
  // Without the context length of the first training: transformers' default.
  d = parse(of_family("Phi3ForCausalLM", "phi3"),
            [&](J& c) { c["max_position_embeddings"] = 131072, c["rope_scaling"] = longrope; });
  CHECK_EQ(d.config.rope.scaling.original_positions, 4096);
  CHECK_EQ(d.config.rope.scaling.factor, 32);
  longrope["long_factor"] = {1, 2};
  CHECK_EQ(phi([&](J& c) { c["rope_scaling"] = longrope; }),
           "2 frequencies have a divisor; heads of which 8 dimensions are turned have 4");
  longrope["long_factor"] = {1, 2, 3, "4"};
  CHECK_EQ(phi([&](J& c) { c["rope_scaling"] = longrope; }),
           "rope scaling of type 'longrope' needs long_factor, a list of numbers");
  longrope["long_factor"] = {1, 2, 3, 0};
  CHECK_EQ(phi([&](J& c) { c["rope_scaling"] = longrope; }),
           "the divisor of a frequency is 0; it must be positive");
  CHECK_EQ(phi([](J& c) { c["partial_rotary_factor"] = 1.5; }),
           "partial_rotary_factor is 1.5; it must be in 0..1");
  CHECK_EQ(phi([](J& c) { c["partial_rotary_factor"] = 0.4; }),
           "the rotary embedding turns 3 dimensions of a head of 8; it must be an even number in 2..8");
}

TEST_CASE("config.json: the context is that behind scaling") {
  const auto context = [](J config, const J& scaling) {
    return parse(std::move(config), [&](J& c) { c["rope_scaling"] = scaling; }).config.max_positions;
  };
  const auto yarn = [](double factor, int original) {
    return J{{"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", original}};
  };
  CHECK_EQ(context(llama(), nullptr), 2048);
  CHECK_EQ(context(llama(), yarn(4, 1024)),
           4096);                                  // as Qwen 3, whose context of 40960 is to become 4 * 32768
  CHECK_EQ(context(llama(), yarn(4, 512)), 2048);  // as DeepSeek, which says the larger number
  CHECK_EQ(context(llama(), yarn(4, 256)), 2048);
  CHECK_EQ(context(llama(), yarn(1e30, 1024)), std::numeric_limits<int>::max());
  const J linear = {{"rope_type", "linear"}, {"factor", 2.5}};
  CHECK_EQ(context(llama(), linear), 5120);
  CHECK_EQ(context(llama(), J{{"rope_type", "linear"}, {"factor", 0.5}}), 2048);
  CHECK_EQ(context(of_family("Gemma3ForCausalLM", "gemma3_text"), linear), 2048);
  J unsaid = llama();
  unsaid.erase("max_position_embeddings");
  CHECK_EQ(context(unsaid, linear), 0);
}

TEST_CASE("rope_scaling of kv files: texts that say something else are refused") {
  const auto message = [](const std::string& text) {
    ModelConfig config;
    config.num_layers = 3, config.head_dim = 8;
    try {
      read_rope_description(text, config);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("read");
  };
  CHECK_EQ(message(""), "read");
  CHECK_EQ(message("{}"), "read");
  CHECK_EQ(message(R"({"layers_without_rope":[0,2],"local":{"layers":[1],"rope_theta":7.0}})"), "read");
  CHECK_EQ(message("[]"), "rope_scaling: holds a JSON array; it must be an object");
  CHECK_EQ(
      message(R"({"rotary_dims":10})"),
      "rope_scaling: the rotary embedding turns 10 dimensions of a head of 8; it must be an even number in 2..8");
  CHECK_EQ(message(R"({"layers_without_rope":[3]})"),
           "rope_scaling: layers_without_rope must be a list of layers in 0..2");
  CHECK_EQ(message(R"({"local":3})"), "rope_scaling: local is 3; it must be an object");
  CHECK_EQ(message(R"({"local":{"rope_theta":-1,"layers":[]}})"),
           "rope_scaling: rope_theta is -1; it must be positive");
  CHECK_EQ(message(R"({"rope_type":"divided","divisors":[1,2,3]})"),
           "rope_scaling: 3 frequencies have a divisor; heads of which 8 dimensions are turned have 4");
  CHECK_EQ(message(R"({"rope_type":"dynamic"})").find("rope_scaling: rope_scaling is of type 'dynamic'"), 0);
}

TEST_CASE("config.json: what each family has besides, and how the kv file says what was turned") {
  ModelDescription d = parse(of_family("SmolLM3ForCausalLM", "smollm3"), [](J& c) {
    c["no_rope_layers"] = {1, 0, 1, 1};
  });
  CHECK(d.config.layer_rope == std::vector{LayerRope::usual, LayerRope::none, LayerRope::usual});
  CHECK_EQ(d.rope_scaling, R"({"layers_without_rope":[1]})");
  CHECK_EQ(refused(of_family("SmolLM3ForCausalLM", "smollm3"),
                   [](J& c) {
                     c["no_rope_layers"] = {1, 2, 1};
                   }),
           "no_rope_layers must list 0 or 1 for each of 3 layers");

  d = parse(of_family("GraniteForCausalLM", "granite"), [](J& c) {
    c["embedding_multiplier"] = 12, c["attention_multiplier"] = 0.125, c["residual_multiplier"] = 0.5;
    c["logits_scaling"] = 8;
  });
  CHECK_EQ(d.config.embedding_scale, 12);
  CHECK_EQ(d.config.attention_scale, 0.125);
  CHECK_EQ(d.config.residual_scale, 0.5);
  CHECK_EQ(d.config.logit_scale, 0.125);
  CHECK_EQ(refused(of_family("GraniteForCausalLM", "granite"), [](J& c) { c["logits_scaling"] = 0; }),
           "logits_scaling is 0; it must be positive");
  CHECK_EQ(refused(of_family("GraniteForCausalLM", "granite"), [](J& c) { c["residual_multiplier"] = -1; }),
           "the scale of residuals is -1; it must be positive");

  d = parse(of_family("Phi3ForCausalLM", "phi3"), [](J& c) { c["partial_rotary_factor"] = 0.75; });
  CHECK_EQ(d.config.rope.dims, 6);
  CHECK_EQ(d.rope_scaling, R"({"rotary_dims":6})");

  const J gemma2 = of_family("Gemma2ForCausalLM", "gemma2"),
          gemma3 = of_family("Gemma3ForCausalLM", "gemma3_text");
  d = parse(gemma2, [](J& c) { c["final_logit_softcapping"] = nullptr; });
  CHECK_EQ(d.config.window, std::vector<int64_t>{4096, 0, 4096});
  CHECK_EQ(d.config.attention_softcap, 50);
  CHECK_EQ(d.config.logit_softcap, 0);
  CHECK_EQ(d.config.attention_scale, 1.0 / 16);
  CHECK_EQ(refused(gemma2, [](J& c) { c["query_pre_attn_scalar"] = 0; }),
           "query_pre_attn_scalar is 0; it must be positive");
  CHECK_EQ(refused(gemma2, [](J& c) { c["sliding_window"] = nullptr; }),
           "layer_types has 'sliding_attention', but no sliding_window is in use");
  d = parse(gemma3, [](J& c) {
    c["sliding_window_pattern"] = 2, c["rope_local_base_freq"] = 5000.0;
    c["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  });
  CHECK_EQ(d.config.window, std::vector<int64_t>{4096, 0, 4096});
  CHECK_EQ(d.config.local_rope.theta, 5000);
  CHECK_EQ(d.config.rope.scaling.factor, 8);
  CHECK_EQ(d.rope_scaling,
           R"({"factor":8.0,"local":{"layers":[0,2],"rope_theta":5000.0},"rope_type":"linear"})");
  CHECK_EQ(refused(gemma3,
                   [](J& c) {
                     c["rope_parameters"] = {{"full_attention", 3}};
                   }),
           "rope_parameters has 3 for a type of layers; it must be an object");
  CHECK_EQ(refused(gemma3, [](J& c) { c["use_bidirectional_attention"] = true; }),
           "use_bidirectional_attention is true; a model that reads what follows has no cache to go on with");

  const J gemma4 = of_family("Gemma4ForCausalLM", "gemma4_text");
  d = parse(gemma4, [](J& c) { c["num_kv_shared_layers"] = 1, c["num_hidden_layers"] = 7; });
  CHECK_EQ(d.config.window, std::vector<int64_t>{512, 512, 512, 512, 512, 0, 0});
  CHECK_EQ(d.config.head_dim, 512);
  CHECK_EQ(d.config.local_head_dim, 256);
  CHECK_EQ(d.config.source_of(6), 5);
  CHECK_FALSE(d.config.has_cache(6));
  CHECK(d.config.has_cache(5));
  CHECK_EQ(d.config.token_inputs.width, 256);
  CHECK_EQ(d.config.max_head_dim(), 512);
  CHECK_EQ(
      d.rope_scaling,
      R"({"local":{"layers":[0,1,2,3,4],"rope_theta":10000.0},"partial_rotary_factor":0.25,"rope_type":"proportional"})");
  d = parse(gemma4, [](J& c) {
    c["per_layer_config"] = {{"2", {{"head_dim", 32}, {"num_key_value_heads", 4}}}};
    c["hidden_size_per_layer_input"] = nullptr;
  });
  CHECK_EQ(d.config.of_layer(0).key_width(), 2 * 256);
  CHECK_EQ(d.config.of_layer(2).key_width(), 4 * 32);
  CHECK_EQ(d.config.key_width(), 2 * 256);
  CHECK_EQ(d.config.token_inputs.width, 0);
  CHECK_EQ(refused(gemma4,
                   [](J& c) {
                     c["per_layer_config"] = {{"1", {{"head_dim", 32}}}};
                   }),
           "per_layer_config gives layer 1 2 heads of 32; layers of its type before have 2 of 256");
  CHECK_EQ(
      refused(gemma4,
              [](J& c) {
                c["per_layer_config"] = {{"2", {{"sliding_window", 32}}}};
              }),
      "per_layer_config has {\"sliding_window\":32} for layer 2; it may have head_dim and num_key_value_heads");
  CHECK_EQ(refused(gemma4, [](J& c) { c["num_kv_shared_layers"] = 1; }),
           "num_kv_shared_layers is 1; no layer before them is of the kind of layer 2");
  CHECK_EQ(refused(gemma4, [](J& c) { c["num_kv_shared_layers"] = 3; }),
           "num_kv_shared_layers is 3; it must be in 0..2");
  CHECK_EQ(refused(gemma4, [](J& c) { c["vocab_size_per_layer_input"] = 99; }),
           "vocab_size_per_layer_input is 99; it must be at least vocab_size (100)");
  CHECK_EQ(refused(gemma4, [](J& c) { c["layer_types"] = J(3, "sliding_attention"); }),
           "the last layer is of 'sliding_attention'; that of a gemma4_text model has 'full_attention'");
  CHECK_EQ(refused(gemma4, [](J& c) { c["use_bidirectional_attention"] = "all"; }),
           "use_bidirectional_attention is all; a model that reads what follows has no cache to go on with");
  CHECK_EQ(refused(gemma4,
                   [](J& c) {
                     c["rope_parameters"] = {
                         {"full_attention", {{"rope_type", "proportional"}, {"partial_rotary_factor", 1.5}}}};
                   }),
           "partial_rotary_factor is 1.5; it is at most 1");
  // The part for text of a model that reads pictures too.
  d = parse({{"architectures", {"Gemma4ForConditionalGeneration"}},
             {"model_type", "gemma4"},
             {"dtype", "bfloat16"},
             {"text_config", gemma4}});
  CHECK_EQ(d.config.family, "gemma4_text");
  CHECK(d.dtype == DType::bf16);

  d = parse(of_family("GPTNeoXForCausalLM", "gpt_neox"));
  for (const char* name : {"gelu_pytorch_tanh", "gelu_new", "gelu_fast"})
    CHECK(parse(of_family("GPTNeoXForCausalLM", "gpt_neox"), [&](J& c) {
            c["hidden_act"] = name;
          }).config.activation == Activation::gelu_tanh);
  CHECK_EQ(d.config.num_kv_heads, 8);
  CHECK_EQ(d.config.rope.dims, 2);
  CHECK(d.config.parallel_residual);
  CHECK_FALSE(d.config.qkv_bias);  // it is switched off in this file

  const J starcoder2 = of_family("Starcoder2ForCausalLM", "starcoder2");
  d = parse(starcoder2, [](J& c) { c.erase("hidden_act"), c.erase("tie_word_embeddings"); });
  CHECK(d.config.norm == NormKind::layer);
  CHECK_EQ(d.config.norm_epsilon, 1e-5);
  CHECK(d.config.activation == Activation::gelu_tanh);
  CHECK(d.config.tied_embeddings);
  CHECK((d.config.qkv_bias && d.config.output_bias && d.config.mlp_bias));
  CHECK_EQ(d.config.window, std::vector<int64_t>{0, 0, 0});
  d = parse(starcoder2,
            [](J& c) { c["use_bias"] = false, c["sliding_window"] = 5, c["norm_epsilon"] = 0.5; });
  CHECK_FALSE((d.config.qkv_bias || d.config.output_bias || d.config.mlp_bias));
  CHECK_EQ(d.config.window, std::vector<int64_t>{5, 5, 5});
  CHECK_EQ(d.config.norm_epsilon, 0.5);
  CHECK_EQ(refused(starcoder2, [](J& c) { c["attention_bias"] = true; }),
           "attention_bias is true; starcoder2 models have none to switch");
  CHECK_EQ(refused(starcoder2,
                   [](J& c) {
                     c["layer_types"] = {"full_attention", "full_attention", "sliding_attention"};
                   }),
           "layer_types has 'sliding_attention', but no sliding_window is in use");

  const J phi = of_family("PhiForCausalLM", "phi");
  d = parse(phi, [](J& c) { c.erase("hidden_act"); });
  CHECK(d.config.norm == NormKind::layer);
  CHECK(d.config.activation == Activation::gelu_tanh);
  CHECK(d.config.qk_norm == QkNorm::none);
  CHECK_EQ(d.config.rope.dims, 4);
  CHECK_EQ(parse(phi, [](J& c) { c["partial_rotary_factor"] = 0.25; }).config.rope.dims, 2);
  CHECK(parse(phi, [](J& c) { c["qk_layernorm"] = true; }).config.qk_norm == QkNorm::heads);

  const J mixtral = of_family("MixtralForCausalLM", "mixtral"),
          moe = of_family("Qwen3MoeForCausalLM", "qwen3_moe");
  d = parse(mixtral);
  CHECK_EQ(parse(mixtral, [](J& c) { c.erase("rope_theta"); }).config.rope.theta, 1000000);
  CHECK_EQ(d.config.mixture.experts, 8);
  CHECK_EQ(d.config.mixture.chosen, 2);
  CHECK_EQ(d.config.mixture.width, 128);
  CHECK_EQ(refused(mixtral, [](J& c) { c["num_experts_per_tok"] = 9; }),
           "num_experts_per_tok is 9; it must be in 1..8");
  CHECK_EQ(refused(mixtral, [](J& c) { c["num_local_experts"] = 1 << 20; }),
           "num_local_experts is 1048576; it must be in 1..65536");
  const auto gpt_oss = [](const Change& change) {
    J config = of_family("GptOssForCausalLM", "gpt_oss");
    config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 32.0}, {"truncate", false}};
    change(config);
    return config;
  };
  d = parse(gpt_oss([](J&) {}));
  CHECK_EQ(d.config.window, std::vector<int64_t>{128, 0, 128});
  CHECK_EQ(d.config.mixture.experts, 128);
  CHECK_FALSE(d.config.rope.scaling.whole_bounds);
  CHECK_EQ(refused(gpt_oss([](J& c) { c["swiglu_limit"] = 5; }), {}),
           "swiglu_limit is 5; only 7 is supported");
  CHECK_EQ(refused(gpt_oss([](J& c) { c["rope_scaling"] = nullptr; }), {}),
           "rope_scaling is missing; gpt_oss models have it");
  d = parse(gpt_oss([](J& c) { c["quantization_config"] = {{"quant_method", "mxfp4"}}; }));
  CHECK_EQ(d.config.mixture.experts, 128);

  d = parse(moe, [](J& c) { c["mlp_only_layers"] = {2}, c["num_experts"] = 16; });
  CHECK_EQ(d.config.mixture.layers, std::vector<bool>{true, true, false});
  CHECK_EQ(d.config.mixture.experts, 16);
  CHECK_EQ(refused(moe, [](J& c) { c["mlp_only_layers"] = {3}; }),
           "mlp_only_layers is [3]; it must be a list of layers in 0..2");
  CHECK_EQ(refused(moe, [](J& c) { c["decoder_sparse_step"] = 0; }),
           "decoder_sparse_step is 0; it must be positive");
}

TEST_CASE("config.json: latent attention and the experts of DeepSeek") {
  const auto v3 = [] {
    J config = of_family("DeepseekV3ForCausalLM", "deepseek_v3");
    config.erase("num_key_value_heads");
    config["rope_scaling"] = {{"type", "yarn"},
                              {"factor", 40.0},
                              {"mscale", 1.0},
                              {"mscale_all_dim", 1.0},
                              {"original_max_position_embeddings", 4096}};
    config["qk_nope_head_dim"] = 128, config["qk_rope_head_dim"] = 64;
    return config;
  };
  const ModelDescription d = parse(v3());
  const ModelConfig& c = d.config;
  CHECK_EQ(c.num_kv_heads, 1);
  CHECK_EQ(c.head_dim, 576);
  CHECK_EQ(c.value_dim(), 512);
  CHECK_EQ(c.cache_width(), 576);
  CHECK_EQ(c.latent.query_rank, 1536);
  CHECK_EQ(c.rope.first, 512);
  CHECK_EQ(c.rope.dims, 64);
  const double loudness = 0.1 * std::log(40.0) + 1;
  CHECK(c.attention_scale == doctest::Approx(loudness * loudness / std::sqrt(192.0)));
  CHECK_EQ(c.rope.scaling.attention_factor, 1);
  CHECK_EQ(c.mixture.experts, 256);
  CHECK_EQ(c.mixture.shared_width, 2048);
  CHECK(c.mixture.layers == std::vector<bool>(3, false));
  CHECK_EQ(beyond_llama(c), "latent attention");
  const J rope = J::parse(d.rope_scaling);
  CHECK_EQ(rope["rotary_dims"], 64);
  CHECK_EQ(rope["first_rotary_dim"], 512);
  CHECK_EQ(parse(v3(), [](J& config) { config["q_lora_rank"] = nullptr; }).config.latent.query_rank, 0);

  CHECK_EQ(refused(v3(), [](J& config) { config["num_key_value_heads"] = 2; }),
           "num_key_value_heads is 2; with latent attention it is num_attention_heads (8)");
  CHECK_EQ(refused(v3(), [](J& config) { config["kv_lora_rank"] = 0; }),
           "kv_lora_rank is 0; it must be positive");
  for (const char* name : {"kv_lora_rank", "qk_nope_head_dim", "n_shared_experts"})
    CHECK_EQ(refused(v3(), [&](J& config) { config[name] = 2147483647; }),
             std::string(name) + " is 2147483647; it must be in 1..1048576");
  CHECK_EQ(refused(v3(), [](J& config) { config["qk_rope_head_dim"] = 63; }),
           "head_dim is 575; rotary embeddings turn pairs, so it must be even");
  CHECK_EQ(refused(v3(), [](J& config) { config["scoring_func"] = "softmax"; }),
           "scoring_func is 'softmax'; only 'sigmoid' is supported");
  CHECK_EQ(refused(v3(), [](J& config) { config["n_group"] = 7; }),
           "n_group is 7; it must divide the 256 experts");
  CHECK_EQ(refused(v3(), [](J& config) { config["num_experts_per_tok"] = 200; }),
           "num_experts_per_tok is 200; 4 groups have 128");
  CHECK_EQ(refused(v3(), [](J& config) { config["n_shared_experts"] = 0; }),
           "n_shared_experts is 0; it must be positive");
  CHECK_EQ(refused(v3(), [](J& config) { config["moe_layer_freq"] = 2; }),
           "moe_layer_freq is 2; only 1 is supported");
  CHECK_EQ(
      refused(v3(),
              [](J& config) {
                config["quantization_config"] = {{"quant_method", "fp8"}};
              }),
      "quantization_config says fp8; weights must be float32, float16, bfloat16, mxfp4, or fp8 with weight_block_size [128, 128]");

  J v2 = of_family("DeepseekV2ForCausalLM", "deepseek_v2");
  v2.erase("num_key_value_heads");
  CHECK_EQ(refused(v2, {}), "num_experts_per_tok is 0; it must be positive");
  v2["num_experts_per_tok"] = 6;
  CHECK_EQ(refused(v2, [](J& config) { config["topk_method"] = "random"; }),
           "topk_method is 'random'; supported are 'greedy' and 'group_limited_greedy'");
  CHECK_EQ(refused(v2, [](J& config) { config["norm_topk_prob"] = true; }),
           "norm_topk_prob is true; deepseek_v2 models do not divide by the sum of scores");
  CHECK_EQ(
      parse(v2, [](J& config) { config["n_group"] = 8, config["topk_group"] = 3; }).config.mixture.groups, 1);
}

TEST_CASE("config.json: other architectures and features are refused, saying what is supported") {
  std::vector<std::string_view> types;
  for (const families::Family& family : families::all_families()) types.push_back(family.model_type);
  CHECK_GE(types.size(), 18);
  const std::string supported = "supported model types are " + families::listed(types);
  CHECK_EQ(refused(of_family("MambaForCausalLM", "mamba"), {}),
           "architecture is 'MambaForCausalLM' (model_type 'mamba'), which is not supported; " + supported);
  CHECK_EQ(refused(of_family("DeepseekV3ForCausalLM", "deepseek_vl"), {}),
           "architecture is 'DeepseekV3ForCausalLM' (model_type 'deepseek_vl'), which is not supported; " +
               supported);
  CHECK_EQ(refused(of_family("LlamaForCausalLM", "mistral"), {}),
           "architecture is 'LlamaForCausalLM' (model_type 'mistral'), which is not supported; " + supported);
  CHECK_EQ(
      refused(of_family("Qwen2MoeForCausalLM", "qwen2_moe"), {}),
      "architecture is 'Qwen2MoeForCausalLM' (model_type 'qwen2_moe'), which is not supported; " + supported);
  CHECK_EQ(refused(llama(), [](J& c) { c.erase("architectures"), c["model_type"] = "gemma"; }),
           "architecture is '' (model_type 'gemma'), which is not supported; " + supported);
  CHECK_EQ(refused(llama(), [](J& c) { c.erase("architectures"), c.erase("model_type"); }),
           "neither architectures nor model_type is there; one must be, and " + supported);
  CHECK_EQ(refused(llama(), [](J& c) { c["architectures"] = "LlamaForCausalLM"; }),
           "architectures is \"LlamaForCausalLM\"; it must be a list of one name, as [\"LlamaForCausalLM\"]");
  CHECK_EQ(parse(llama(), [](J& c) { c["architectures"] = J::array(); }).config.family, "llama");
  CHECK_EQ(parse(llama(), [](J& c) { c["architectures"] = {"LlamaModel"}; }).config.family, "llama");
  CHECK_EQ(refused(llama(), [](J& c) { c["hidden_act"] = "relu"; }),
           "hidden_act is 'relu'; supported are 'silu', 'gelu' and 'gelu_pytorch_tanh'");
  CHECK_EQ(
      refused(llama(),
              [](J& c) {
                c["quantization_config"] = {{"quant_method", "gptq"}};
              }),
      "quantization_config says gptq; weights must be float32, float16, bfloat16, mxfp4, or fp8 with weight_block_size [128, 128]");
  CHECK_EQ(refused(qwen2(), [](J& c) { c["is_causal"] = false; }),
           "is_causal is false; a model that reads what follows has no cache to go on with");
  for (const J& causal : {J(true), J(nullptr)})
    CHECK_EQ(refused(qwen2(), [&](J& c) { c["is_causal"] = causal; }), "accepted");
  CHECK_EQ(refused(llama(), [](J& c) { c["torch_dtype"] = "float8_e4m3fn"; }),
           "torch_dtype is 'float8_e4m3fn'; supported are float32, float16 and bfloat16");
}

TEST_CASE("config.json: fields of the wrong type or size are refused by name") {
  for (const char* name :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    CHECK_EQ(refused(llama(), [&](J& c) { c.erase(name); }),
             std::string(name) + " is missing; it must be an integer");
    CHECK_EQ(refused(llama(), [&](J& c) { c[name] = "64"; }),
             std::string(name) + " is \"64\"; it must be an integer");
    CHECK_EQ(refused(llama(), [&](J& c) { c[name] = 1e30; }),
             std::string(name) + " is 1e+30; it must be an integer");
    CHECK_EQ(refused(llama(), [&](J& c) { c[name] = uint64_t{1} << 63; }),
             std::string(name) + " is 9223372036854775808; it must be an integer");
    CHECK_EQ(refused(llama(), [&](J& c) { c[name] = int64_t{1} << 40; }),
             std::string(name) + " is 1099511627776; it does not fit 32 bits");
  }
  CHECK_EQ(refused(llama(), [](J& c) { c["num_hidden_layers"] = 1 << 30; }),
           "num_hidden_layers is 1073741824; it must be in 1..4096");
  CHECK_EQ(refused(llama(), [](J& c) { c["vocab_size"] = 1 << 30; }),
           "vocab_size is 1073741824; it must be in 1..16777216");
  CHECK_EQ(refused(llama(), [](J& c) { c["rms_norm_eps"] = "small"; }),
           "rms_norm_eps is \"small\"; it must be a number");
  CHECK_EQ(refused(llama(), [](J& c) { c["tie_word_embeddings"] = 1; }),
           "tie_word_embeddings is 1; it must be true or false");
  CHECK_EQ(refused(llama(), [](J& c) { c["model_type"] = 3; }), "model_type is 3; it must be a string");
}

TEST_CASE("config.json: files that are no configuration") {
  const auto message = [](const std::string& text) {
    try {
      parse_model_config(text, "config.json");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK_EQ(message(""), "config.json: not JSON from byte 1 on");
  CHECK_EQ(message("{\"a\": "), "config.json: not JSON from byte 7 on");
  CHECK_EQ(message("[1]"), "config.json: holds a JSON array; it must be an object");
  CHECK_EQ(message(R"({"vocab_size": 1, "vocab_size": 2})"),
           "config.json: field 'vocab_size' is there twice");
  CHECK_EQ(message(R"({"a": [{"b": 1}, {"b": 1, "b": 2}]})"), "config.json: field 'b' is there twice");
  CHECK_EQ(message("{\"a\": 1e999}"), "config.json: not JSON: a number is out of range");
  CHECK_EQ(message("{\"a\": \"\xff\"}"), "config.json: not JSON from byte 8 on");
  CHECK_EQ(message(std::string(200000, '[')), "config.json: not JSON from byte 200001 on");
  const auto nested = [](size_t levels) {
    J config = llama();
    config["rope_scaling"] = "<>";
    std::string text = config.dump();
    return text.replace(text.find("\"<>\""), 4, std::string(levels, '[') + std::string(levels, ']'));
  };
  CHECK_EQ(message(nested(199)),
           "config.json: rope_scaling is " + std::string(199, '[') + "]…; it must be null or an object");
  // Writing this one into a message would overflow the stack.
  for (const size_t levels : {200, 200'000})
    CHECK_EQ(message(nested(levels)), "config.json: lists and objects are nested more than 200 deep");

  const std::string folder = std::filesystem::temp_directory_path() / "kvcodec-config-test";
  std::filesystem::create_directories(folder);
  CHECK_THROWS_WITH(
      read_model_config(folder + "/none"),
      doctest::Contains("kvcodec-config-test/none/config.json: cannot be read: No such file or directory"));
  std::ofstream(folder + "/config.json") << std::string(5 << 20, ' ');
  CHECK_THROWS_WITH(read_model_config(folder),
                    doctest::Contains("has 5242880 bytes; at most 4194304 are plausible"));
  std::ofstream(folder + "/config.json") << llama().dump();
  CHECK_EQ(read_model_config(folder).config.num_layers, 3);
  std::filesystem::remove_all(folder);
}

TEST_CASE("config.json: Qwen's hybrids have layers without attention, and heads that are turned in part") {
  const auto hybrid = [] {
    nlohmann::json config = of_family("Qwen3_5ForCausalLM", "qwen3_5_text");
    config["num_hidden_layers"] = 8, config["head_dim"] = 16;
    return config;
  };
  const ModelConfig config = parse(hybrid()).config;
  CHECK(config.delta.layers == std::vector<bool>{true, true, true, false, true, true, true, false});
  CHECK_EQ(config.delta.mixed_width(), 2 * 16 * 128 + 32 * 128);
  CHECK_EQ(config.delta.state_size(), 3 * 8192 + 32 * 128 * 128);
  CHECK_EQ(config.rope.dims, 4);
  CHECK(config.output_gate);
  CHECK_EQ(beyond_llama(config), "layers without attention");
  const auto of_types = [&](nlohmann::json types) {
    return refused(hybrid(), [&](nlohmann::json& c) { c["layer_types"] = std::move(types); });
  };
  CHECK_EQ(of_types({"full_attention"}),
           "layer_types must say 'linear_attention' or 'full_attention' for each of 8 layers");
  CHECK_EQ(of_types(std::vector<std::string>(8, "linear_attention")),
           "no layer has attention; a model without a cache of keys and values is not supported");
  CHECK_EQ(refused(hybrid(), [](nlohmann::json& c) { c["full_attention_interval"] = 0; }),
           "full_attention_interval is 0; it must be positive");
  CHECK_EQ(refused(hybrid(), [](nlohmann::json& c) { c["linear_num_value_heads"] = 24; }),
           "linear_num_value_heads is 24; it must be a multiple of linear_num_key_heads (16)");
  nlohmann::json next = hybrid();
  next["architectures"] = {"Qwen3NextForCausalLM"}, next["model_type"] = "qwen3_next";
  next["mlp_only_layers"] = {2};
  const ModelConfig mixed = parse(next).config;
  CHECK_EQ(mixed.mixture.experts, 512);
  CHECK_EQ(mixed.mixture.shared_width, 512);
  CHECK_FALSE(mixed.has_mixture(2));
  CHECK(mixed.has_mixture(3));
  CHECK_EQ(parse(next, [](nlohmann::json& c) { c["num_experts"] = 0; }).config.mixture.experts, 0);
}

TEST_CASE("config.json: LFM2 has convolutions in the place of attention, and an MLP of adjusted width") {
  const nlohmann::json lfm2 = of_family("Lfm2ForCausalLM", "lfm2");
  ModelConfig config = parse(lfm2, [](nlohmann::json& c) { c["full_attn_idxs"] = {1}; }).config;
  CHECK(config.delta.layers == std::vector<bool>{true, false, true});
  CHECK_EQ(config.rope_of(0), LayerRope::none);
  CHECK_EQ(config.rope_of(1), LayerRope::usual);
  CHECK_EQ(config.delta.state_size(), 2 * 64);
  CHECK_EQ(config.intermediate_size, 256);  // 85, up to a multiple of 256
  CHECK_EQ(beyond_llama(config), "layers without attention");
  const auto width = [&](const Change& change) { return parse(lfm2, change).config.intermediate_size; };
  CHECK_EQ(width([](nlohmann::json& c) { c["block_auto_adjust_ff_dim"] = false; }), 128);
  CHECK_EQ(width([](nlohmann::json& c) { c["block_ffn_dim_multiplier"] = nullptr; }), 85);
  CHECK_EQ(width([](nlohmann::json& c) { c["block_ff_dim"] = 1536, c["block_ffn_dim_multiplier"] = 1.1; }),
           1280);
  CHECK_FALSE(parse(lfm2, [](nlohmann::json& c) {
                c.erase("tie_word_embeddings"), c["tie_embedding"] = false;
              }).config.tied_embeddings);
  CHECK_EQ(refused(lfm2, [](nlohmann::json& c) { c["block_multiple_of"] = 0; }),
           "block_multiple_of is 0; it must be positive");
  CHECK_EQ(refused(lfm2, [](nlohmann::json& c) { c["block_ffn_dim_multiplier"] = -1; }),
           "block_ffn_dim_multiplier is -1; it must be in 0..1024");
  CHECK_EQ(refused(lfm2, [](nlohmann::json& c) { c["block_ff_dim"] = "many"; }),
           "intermediate_size is \"many\"; it must be an integer");
  CHECK_EQ(refused(lfm2,
                   [](nlohmann::json& c) {
                     c["full_attn_idxs"] = {1, 3};
                   }),
           "full_attn_idxs is [1,3]; it must be a list of layers in 0..2");
  CHECK_EQ(refused(lfm2, [](nlohmann::json& c) { c["full_attn_idxs"] = nlohmann::json::array(); }),
           "no layer has attention; a model without a cache of keys and values is not supported");
  CHECK_EQ(refused(lfm2,
                   [](nlohmann::json& c) {
                     c["layer_types"] = {"conv", "sliding_attention", "full_attention"};
                   }),
           "layer_types must say 'conv' or 'full_attention' for each of 3 layers");
  CHECK_EQ(refused(lfm2, [](nlohmann::json& c) { c["full_attn_idxs"] = {0}, c["conv_L_cache"] = 0; }),
           "conv_L_cache is 0; it must be in 1..1024");
}

TEST_CASE("config.json: GPT-2 has names of its own, and learned positions") {
  const nlohmann::json gpt2 = nlohmann::json::parse(
      R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 100,
      "vocab_size": 60, "activation_function": "gelu_new"})");
  const ModelConfig config = parse(gpt2).config;
  CHECK_EQ(config.intermediate_size, 192);
  CHECK_EQ(config.max_positions, 100);
  CHECK(config.activation == Activation::gelu_tanh);
  CHECK((config.qkv_bias && config.output_bias && config.mlp_bias && config.tied_embeddings));
  CHECK_EQ(config.rope_of(1), LayerRope::none);
  CHECK_EQ(config.attention_scale, 0);
  CHECK_EQ(parse(gpt2, [](nlohmann::json& c) { c["n_inner"] = 80; }).config.intermediate_size, 80);
  CHECK_EQ(parse(gpt2, [](nlohmann::json& c) { c["scale_attn_weights"] = false; }).config.attention_scale, 1);
  CHECK_EQ(refused(gpt2, [](nlohmann::json& c) { c["scale_attn_by_inverse_layer_idx"] = true; }),
           "scale_attn_by_inverse_layer_idx is true; only false is supported");
  CHECK_EQ(refused(gpt2, [](nlohmann::json& c) { c["add_cross_attention"] = true; }),
           "add_cross_attention is true; only false is supported");
  CHECK_EQ(refused(gpt2, [](nlohmann::json& c) { c.erase("n_positions"); }),
           "max_position_embeddings is 0; it must be in 1..1048576");
  CHECK_EQ(refused(gpt2, [](nlohmann::json& c) { c["n_embd"] = int64_t{1} << 40; }),
           "hidden_size is 1099511627776; it does not fit 32 bits");
  CHECK_EQ(refused(gpt2, [](nlohmann::json& c) { c["n_embd"] = 50; }),
           "hidden_size is 50; without head_dim it must be a multiple of num_attention_heads (4)");
}

}  // namespace model_config_test
