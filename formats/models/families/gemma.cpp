// Gemma 2 and Gemma 3 (text): norms before and behind attention and MLP that multiply by 1 + w, scaled embeddings,
// windows in most layers; Gemma 2 caps scores and logits, Gemma 3 has norms of heads and another rotary embedding in
// the layers with windows.
#include <cmath>

#include "formats/models/families/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

constexpr int64_t kGemmaSlidingWindow = 4096;
constexpr double kQueryScalar = 256;
constexpr double kScoreCap = 50, kLogitCap = 30;
constexpr int64_t kPattern = 6;  // Gemma 3: every sixth layer sees all
constexpr double kLocalTheta = 10000;

/// 0 where it is null.
double cap_of(const JsonFields& fields, const char* name, double otherwise) {
  if (fields.has_null(name)) return 0;
  return fields.get_number(name).value_or(otherwise);
}

void describe_both(Reading& reading) {
  ModelConfig& config = reading.config;
  if (reading.fields.get_bool("use_bidirectional_attention").value_or(false))
    refuse_bidirectional("use_bidirectional_attention", true);
  config.norm_adds_one = true;
  config.names.attention_out_norm = "post_attention_layernorm";
  config.names.mlp_norm = "pre_feedforward_layernorm";
  config.names.mlp_out_norm = "post_feedforward_layernorm";
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  const double scalar = reading.fields.get_number("query_pre_attn_scalar").value_or(kQueryScalar);
  if (!(scalar > 0)) throw bad_input("query_pre_attn_scalar is {}; it must be positive", scalar);
  config.attention_scale = 1 / std::sqrt(scalar);
}

void describe_gemma2(Reading& reading) {
  ModelConfig& config = reading.config;
  describe_both(reading);
  config.attention_softcap = cap_of(reading.fields, "attn_logit_softcapping", kScoreCap);
  config.logit_softcap = cap_of(reading.fields, "final_logit_softcapping", kLogitCap);
  set_windows(config, sliding_layers(reading, [](int layer) { return layer % 2 == 0; }),
              window_of(reading.fields, kGemmaSlidingWindow));
}

/// rope_parameters has one set for each type of layer; before, there were rope_scaling for one and a theta for each.
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
  describe_both(reading);
  config.qk_norm = QkNorm::heads;
  if (fields.find("attn_logit_softcapping"))
    throw bad_input("attn_logit_softcapping is set; gemma3_text models have none");
  config.logit_softcap = cap_of(fields, "final_logit_softcapping", 0);
  const int64_t pattern = fields.get_int("sliding_window_pattern").value_or(kPattern);
  if (pattern < 1) throw bad_input("sliding_window_pattern is {}; it must be positive", pattern);
  const std::vector<bool> slides =
      sliding_layers(reading, [&](int layer) { return (layer + 1) % pattern != 0; });
  set_windows(config, slides, window_of(fields, kGemmaSlidingWindow));
  for (const bool layer_slides : slides)
    config.layer_rope.push_back(layer_slides ? LayerRope::local : LayerRope::usual);
  read_ropes(reading);
}

}  // namespace

const Family kGemma2 = {.model_type = "gemma2",
                        .class_prefix = "Gemma2",
                        .describe = describe_gemma2,
                        .activation_field = "hidden_activation",
                        .activation = Activation::gelu_tanh,
                        .tied_embeddings = true,
                        .head_dim = 256,
                        .may_have_attention_bias = true};
const Family kGemma3 = {.model_type = "gemma3_text",
                        .class_prefix = "Gemma3",
                        .describe = describe_gemma3,
                        .activation_field = "hidden_activation",
                        .activation = Activation::gelu_tanh,
                        .tied_embeddings = true,
                        .head_dim = 256,
                        .rope_theta = 1000000,
                        .rope_by_layer_type = true,
                        .may_have_attention_bias = true};

}  // namespace kvcodec::families
