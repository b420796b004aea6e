// Gemma 2 and Gemma 3 (text): norms before and after attention and MLP that multiply by 1 + w, scaled embeddings, windows in most
// layers; Gemma 2 caps scores and logits, Gemma 3 has norms of heads and another rotary embedding in the layers with windows. GGUF
// files store norms with the 1 added.
#include <cmath>

#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

constexpr int kGemmaSlidingWindow = 4096;
constexpr double kQueryScalar = 256;
constexpr double kScoreCap = 50, kLogitCap = 30;
constexpr int kPattern = 6;  // Gemma 3: every sixth layer sees all
constexpr double kLocalTheta = 10000;
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

void describe_gemma(Reading& reading) {
  ModelConfig& config = reading.config;
  if (reading.fields.get_bool("use_bidirectional_attention").value_or(false))
    refuse_bidirectional("use_bidirectional_attention", true);
  config.norm_adds_one = true;
  config.names.attention_out_norm = "post_attention_layernorm";
  config.names.mlp_norm = "pre_feedforward_layernorm";
  config.names.mlp_out_norm = "post_feedforward_layernorm";
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
  reading.config.rope = rope_of(fields, usual, theta);
  reading.config.local_rope = rope_of(fields, local, local_theta);
  if (reading.config.local_rope.scaling.kind != RopeScaling::Kind::none)
    throw bad_input(
        "rope_parameters scales the rotary embedding of 'sliding_attention'; only that of "
        "'full_attention' can be scaled");
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
  for (const bool slides : set_windows(reading, window_of(fields, kGemmaSlidingWindow),
                                       [&](int layer) { return (layer + 1) % pattern != 0; }))
    config.layer_rope.push_back(slides ? LayerRope::local : LayerRope::usual);
  read_ropes(reading);
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
  static constexpr Family kAll[] = {{.model_type = "gemma2",
                                     .class_prefix = "Gemma2",
                                     .parts = set_gemma2_parts,
                                     .describe = describe_gemma2,
                                     .gguf = {.architecture = "gemma2", .describe = describe_gemma2},
                                     .activation_field = "hidden_activation",
                                     .activation = Activation::gelu_tanh,
                                     .tied_embeddings = true,
                                     .head_dim = 256,
                                     .may_have_attention_bias = true},
                                    {.model_type = "gemma3_text",
                                     .class_prefix = "Gemma3",
                                     .parts = set_gemma3_parts,
                                     .describe = describe_gemma3,
                                     .gguf = {.architecture = "gemma3", .describe = describe_gemma3},
                                     .activation_field = "hidden_activation",
                                     .activation = Activation::gelu_tanh,
                                     .tied_embeddings = true,
                                     .head_dim = 256,
                                     .rope_theta = 1000000,
                                     .rope_by_layer_type = true,
                                     .may_have_attention_bias = true}};
  return kAll;
}

}  // namespace kvcodec::families
