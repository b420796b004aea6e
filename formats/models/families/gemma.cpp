// Gemma 2, 3 and 4 (text): norms before and after attention and MLP that multiply by 1 + w, scaled embeddings, windows in most
// layers; Gemma 2 caps scores and logits, Gemma 3 has norms of heads and another rotary embedding in the layers with windows. Gemma 4
// has other heads there, norms of values, and numbers of each token in every layer; its last layers may use keys and values of earlier
// ones; its norms add nothing. GGUF files store norms with the 1 added.
#include <array>
#include <cmath>
#include <tuple>

#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

constexpr int kGemmaSlidingWindow = 4096;
constexpr double kQueryScalar = 256;
constexpr double kScoreCap = 50, kLogitCap = 30;
constexpr int kPattern = 6;  // Gemma 3: every sixth layer sees all
constexpr double kLocalTheta = 10000;
constexpr int kGemma4SlidingWindow = 512, kGlobalHeadDim = 512, kTokenWidth = 256, kTokenVocabulary = 262144;
constexpr int kGemma2Layers27b = 46, kGemma3Layers27b = 62;

/// 0 if it is null.
double cap_of(const JsonFields& fields, const char* name, double otherwise) {
  if (fields.has_null(name)) return 0;
  return fields.get_number(name).value_or(otherwise);
}

void set_gemma2_parts(ModelConfig& config) {
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
}

void set_gemma3_parts(ModelConfig& config) {
  set_gemma2_parts(config);
  config.qk_norm = QkNorm::heads;
}

void set_names(TensorNames& names) {
  names.attention_out_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_out_norm = "post_feedforward_layernorm";
}

void describe_gemma(Reading& reading) {
  ModelConfig& config = reading.config;
  if (reading.fields.get_bool("use_bidirectional_attention").value_or(false))
    refuse_bidirectional("use_bidirectional_attention", "true");
  config.norm_adds_one = true;
  set_names(config.names);
  const double scalar = reading.fields.get_number("query_pre_attn_scalar").value_or(kQueryScalar);
  if (!(scalar > 0)) throw bad_input("query_pre_attn_scalar is {}; it must be positive", scalar);
  config.attention_scale = 1 / std::sqrt(scalar);
}

void describe_gemma2(Reading& reading) {
  ModelConfig& config = reading.config;
  describe_gemma(reading);
  config.attention_softcap = cap_of(reading.fields, "attn_logit_softcapping", kScoreCap);
  config.logit_softcap = cap_of(reading.fields, "final_logit_softcapping", kLogitCap);
  set_windows(reading, window_of(reading.fields, kGemmaSlidingWindow),
              [](int layer) { return layer % 2 == 0; });
}

/// rope_parameters has one set for each type of layer; older files have rope_scaling for one type and a theta for each.
void read_ropes(Reading& reading) {
  const JsonFields& fields = reading.fields;
  const nlohmann::json* const object = reading.rope;
  const double theta = reading.config.rope.theta;
  const double local_theta = fields.get_number("rope_local_base_freq").value_or(kLocalTheta);
  const nlohmann::json* usual = object;
  const nlohmann::json* local = nullptr;
  if (object && (object->contains("full_attention") || object->contains("sliding_attention"))) {
    const JsonFields types(*object);
    usual = types.find("full_attention"), local = types.find("sliding_attention");
    for (const nlohmann::json* const set : {usual, local})
      if (set && !set->is_object())
        throw bad_input("rope_parameters has {} for a type of layers; it must be an object",
                        printable(set->dump()));
  }
  reading.rope = usual;
  const RopeScaling otherwise = reading.config.rope.scaling;
  reading.config.rope = rope_of(fields, usual, theta);
  if (!object) reading.config.rope.scaling = otherwise;
  reading.config.local_rope = rope_of(fields, local, local_theta);
  if (reading.config.local_rope.scaling.kind != RopeScaling::Kind::none)
    throw bad_input(
        "rope_parameters scales the rotary embedding of 'sliding_attention'; only that of "
        "'full_attention' can be scaled");
}

/// Windows and another rotary embedding in all but every pattern-th layer, and perhaps the last one.
void set_layers(Reading& reading, int window, int64_t pattern, bool last_slides) {
  for (const bool slides : set_windows(reading, window_of(reading.fields, window), [&](int layer) {
         return (layer + 1) % pattern != 0 && (last_slides || layer + 1 < reading.config.num_layers);
       }))
    reading.config.layer_rope.push_back(slides ? LayerRope::local : LayerRope::usual);
  read_ropes(reading);
}

void describe_gemma3(Reading& reading) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  describe_gemma(reading);
  if (fields.find("attn_logit_softcapping"))
    throw bad_input("attn_logit_softcapping is set; gemma3_text models have none");
  config.logit_softcap = cap_of(fields, "final_logit_softcapping", 0);
  const int64_t pattern = fields.get_int("sliding_window_pattern").value_or(kPattern);
  if (pattern < 1) throw bad_input("sliding_window_pattern is {}; it must be positive", pattern);
  set_layers(reading, kGemmaSlidingWindow, pattern, true);
}

/// Heads of the layers without a window, and of those with one. Newer files list layers that differ from the others, older ones have
/// fields for the layers without a window.
void read_heads(Reading& reading) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  const int heads = config.num_kv_heads, dims = config.head_dim;
  const nlohmann::json* const listed = fields.find("per_layer_config");
  std::optional<std::pair<int, int>> of_kind[2];
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const bool slides = config.rope_of(layer) == LayerRope::local;
    std::pair own(heads, dims);
    if (!listed && !slides) {
      own.second = int_of(fields, "global_head_dim", kGlobalHeadDim);
      if (config.keys_make_values) own.first = int_of(fields, "num_global_key_value_heads", heads);
    } else if (const auto number = std::to_string(layer); listed && listed->contains(number)) {
      const nlohmann::json& entry = listed->at(number);
      if (!entry.is_object() || entry.size() != entry.count("num_key_value_heads") + entry.count("head_dim"))
        throw bad_input("per_layer_config has {} for layer {}; it may have head_dim and num_key_value_heads",
                        printable(entry.dump()), layer);
      const JsonFields own_fields(entry);
      own = {int_of(own_fields, "num_key_value_heads", heads), int_of(own_fields, "head_dim", dims)};
    }
    if (of_kind[slides].value_or(own) != own)
      throw bad_input(
          "per_layer_config gives layer {} {} heads of {}; layers of its type before have {} of {}", layer,
          own.first, own.second, of_kind[slides]->first, of_kind[slides]->second);
    of_kind[slides] = own;
  }
  if (of_kind[false]) std::tie(config.num_kv_heads, config.head_dim) = *of_kind[false];
  if (of_kind[true] && of_kind[true] != of_kind[false])
    std::tie(config.local_kv_heads, config.local_head_dim) = *of_kind[true];
}

void set_gemma4_parts(ModelConfig& config) {
  set_gemma3_parts(config);
  config.value_norm = true;
  config.attention_scale = 1;
  config.rope.scaling = {.kind = RopeScaling::Kind::proportional, .share = 0.25};
  set_names(config.names);
  config.names.layer_scale = "layer_scalar";
}

void read_experts(Reading& reading) {
  const JsonFields& fields = reading.fields;
  reading.config.mixture = {
      .experts = as_int("num_experts", fields.need_int("num_experts")),
      .chosen = as_int("top_k_experts", fields.need_int("top_k_experts")),
      .width = as_int("moe_intermediate_size", fields.need_int("moe_intermediate_size")),
      .beside_mlp = true,
      .layers = std::vector<bool>(static_cast<size_t>(reading.config.num_layers), true)};
  TensorNames& names = reading.config.names;
  names.router = "router.proj", names.router_scale = "router.scale";
  names.experts = "experts", names.stacked_gate_up = "gate_up_proj", names.expert_down = "down_proj";
  names.stacked_halves = true, names.expert_scales = "router.per_expert_scale";
  names.beside_out_norm = "post_feedforward_layernorm_1", names.expert_norm = "pre_feedforward_layernorm_2";
  names.expert_out_norm = "post_feedforward_layernorm_2";
}

void describe_gemma4(Reading& reading) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  if (const auto both = fields.get_string("use_bidirectional_attention"); both && *both != "vision")
    refuse_bidirectional("use_bidirectional_attention", printable(*both));
  if (fields.get_bool("enable_moe_block").value_or(false)) read_experts(reading);
  config.logit_softcap = cap_of(fields, "final_logit_softcapping", 0);
  config.keys_make_values = fields.get_bool("attention_k_eq_v").value_or(false);
  set_layers(reading, kGemma4SlidingWindow, kPattern, false);
  if (config.rope_of(config.num_layers - 1) == LayerRope::local)
    throw bad_input(
        "the last layer is of 'sliding_attention'; that of a gemma4_text model has 'full_attention'");
  read_heads(reading);
  config.shared_layers = int_of(fields, "num_kv_shared_layers", 0);
  if (fields.get_bool("use_double_wide_mlp").value_or(false))
    config.shared_intermediate_size = as_int("intermediate_size", int64_t{2} * config.intermediate_size);
  if (!fields.has_null("hidden_size_per_layer_input"))
    config.token_inputs = {int_of(fields, "hidden_size_per_layer_input", kTokenWidth),
                           int_of(fields, "vocab_size_per_layer_input", kTokenVocabulary)};
}

/// No key gives the divisor of scores. It is the square root of the head dimension, except in the largest models, which are
/// recognized by their number of layers: there it is the root of the hidden size per head.
double attention_scale(const ModelConfig& config, int layers_27b) {
  const int divisor =
      config.num_layers == layers_27b ? config.hidden_size / config.num_q_heads : config.head_dim;
  return 1 / std::sqrt(static_cast<double>(divisor));
}

void describe_gemma(gguf::Reading& reading, int layers_27b) {
  reading.config.names.attention_out_norm = "post_attention_norm";
  reading.config.names.mlp_out_norm = "post_ffw_norm";
  reading.config.attention_scale = attention_scale(reading.config, layers_27b);
}

void describe_gemma2(gguf::Reading& reading) {
  ModelConfig& config = reading.config;
  describe_gemma(reading, kGemma2Layers27b);
  config.attention_softcap = reading.fields.number_or("attn_logit_softcapping", kScoreCap);
  config.logit_softcap = reading.fields.number_or("final_logit_softcapping", kLogitCap);
  reading.fields.must_be("rope.freq_base_swa", config.rope.theta);
  set_windows(reading, sliding_layers(reading, 2),
              reading.fields.size_or("attention.sliding_window", kGemmaSlidingWindow));
}

void describe_gemma3(gguf::Reading& reading) {
  ModelConfig& config = reading.config;
  describe_gemma(reading, kGemma3Layers27b);
  config.logit_softcap = reading.fields.number_or("final_logit_softcapping", 0);
  const int window = reading.fields.size_or("attention.sliding_window", 0);
  if (window == 0) return set_no_window(reading);
  const std::vector<bool> slides = sliding_layers(reading, kPattern);
  set_windows(reading, slides, window);
  // The file describes the scaling of the layers without a window.
  config.local_rope.theta = reading.fields.number_or("rope.freq_base_swa", kLocalTheta);
  for (const bool layer_slides : slides)
    config.layer_rope.push_back(layer_slides ? LayerRope::local : LayerRope::usual);
}

}  // namespace

std::span<const Family> gemma() {
  static constexpr auto kAll = [] {
    Family two{.model_type = "gemma2",
               .class_prefix = "Gemma2",
               .parts = set_gemma2_parts,
               .describe = describe_gemma2,
               .gguf = {.architecture = "gemma2", .describe = describe_gemma2},
               .activation_field = "hidden_activation",
               .activation = Activation::gelu_tanh,
               .tied_embeddings = true,
               .head_dim = 256,
               .may_have_attention_bias = true};
    Family three = two;
    three.model_type = "gemma3_text", three.class_prefix = "Gemma3";
    three.parts = set_gemma3_parts, three.describe = describe_gemma3;
    three.gguf = {.architecture = "gemma3", .describe = describe_gemma3};
    three.rope_theta = 1000000, three.rope_by_layer_type = true;
    Family four = three;
    four.model_type = "gemma4_text", four.class_prefix = "Gemma4";
    four.parts = set_gemma4_parts, four.describe = describe_gemma4, four.gguf = {};
    return std::array{two, three, four};
  }();
  return kAll;
}

}  // namespace kvcodec::families
