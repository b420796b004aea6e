// DeepSeek-V2 and V3 (also R1): latent attention, and a mixture of experts after the first layers, beside an MLP for all tokens.
// Layers that predict more than the next token come last in files of V3 and are ignored.
#include <cmath>

#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {

static int size_of_field(const JsonFields& fields, const char* name, int64_t otherwise) {
  const int64_t value = fields.get_int(name).value_or(otherwise);
  if (value < 1) throw bad_input("{} is {}; it must be positive", name, value);
  constexpr int64_t kMaxSize = 1 << 20;  // sums and products of two fit; check() has bounds of its own
  if (value > kMaxSize) throw bad_input("{} is {}; it must be in 1..{}", name, value, kMaxSize);
  return static_cast<int>(value);
}

static void must_be(const JsonFields& fields, const char* name, std::string_view wanted) {
  if (const auto said = fields.get_string(name); said && *said != wanted)
    throw bad_input("{} is '{}'; only '{}' is supported", name, printable(*said), wanted);
}

/// The factor by which yarn scales scores: the square of its factor for all dimensions.
static double yarn_loudness(const Reading& reading) {
  if (!reading.rope || reading.config.rope.scaling.kind == RopeScaling::Kind::none) return 1;
  const double all = JsonFields(*reading.rope).get_number("mscale_all_dim").value_or(0);
  const double factor = reading.config.rope.scaling.factor;
  if (all == 0 || factor <= 1) return 1;
  const double loudness = 0.1 * all * std::log(factor) + 1;
  return loudness * loudness;
}

static void describe_attention(Reading& reading) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  if (const auto heads = fields.get_int("num_key_value_heads"); heads && *heads != config.num_q_heads)
    throw bad_input("num_key_value_heads is {}; with latent attention it is num_attention_heads ({})", *heads,
                    config.num_q_heads);
  LatentAttention& latent = config.latent;
  latent.rank = size_of_field(fields, "kv_lora_rank", 512);
  if (!fields.has_null("q_lora_rank")) latent.query_rank = size_of_field(fields, "q_lora_rank", 1536);
  latent.plain_dim = size_of_field(fields, "qk_nope_head_dim", 128);
  latent.turned_dim = size_of_field(fields, "qk_rope_head_dim", 64);
  latent.value_dim = size_of_field(fields, "v_head_dim", 128);
  latent.interleaved = fields.get_bool("rope_interleave").value_or(true);
  config.num_kv_heads = 1;
  config.head_dim = latent.rank + latent.turned_dim;
  config.rope.first = latent.rank;
  config.rope.dims = latent.turned_dim;
  config.attention_scale = yarn_loudness(reading) / std::sqrt(static_cast<double>(latent.query_dim()));
  config.window.assign(static_cast<size_t>(config.num_layers), 0);
  TensorNames& names = config.names;
  names.query = latent.query_rank > 0 ? "self_attn.q_b_proj" : "self_attn.q_proj";
  names.query_down = "self_attn.q_a_proj", names.query_down_norm = "self_attn.q_a_layernorm";
  names.key = "self_attn.kv_a_proj_with_mqa", names.latent_norm = "self_attn.kv_a_layernorm";
  names.latent_up = "self_attn.kv_b_proj";
}

/// defaults: those of transformers.
static void describe_mixture(Reading& reading, const Mixture& defaults, int64_t shared_experts,
                             int64_t dense_layers) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  if (const auto step = fields.get_int("moe_layer_freq"); step && *step != 1)
    throw bad_input("moe_layer_freq is {}; only 1 is supported", *step);
  Mixture& mixture = config.mixture;
  mixture.experts = size_of_field(fields, "n_routed_experts", defaults.experts);
  mixture.chosen = size_of_field(fields, "num_experts_per_tok", defaults.chosen);
  mixture.width = size_of_field(fields, "moe_intermediate_size", defaults.width);
  const int64_t shared = size_of_field(fields, "n_shared_experts", shared_experts);
  mixture.shared_width = as_int("moe_intermediate_size of all shared experts", shared * mixture.width);
  mixture.scale = fields.get_number("routed_scaling_factor").value_or(defaults.scale);
  mixture.groups = size_of_field(fields, "n_group", defaults.groups);
  mixture.chosen_groups = size_of_field(fields, "topk_group", defaults.chosen_groups);
  const int64_t dense = fields.get_int("first_k_dense_replace").value_or(dense_layers);
  for (int layer = 0; layer < config.num_layers; ++layer) mixture.layers.push_back(layer >= dense);
  TensorNames& names = config.names;
  names.router = "mlp.gate", names.experts = "mlp.experts", names.shared_expert = "mlp.shared_experts";
  names.expert_gate = "gate_proj", names.expert_up = "up_proj", names.expert_down = "down_proj";
}

static void describe_v2(Reading& reading) {
  const JsonFields& fields = reading.fields;
  must_be(fields, "scoring_func", "softmax");
  describe_attention(reading);
  const Mixture defaults{.experts = 64, .chosen = 0, .width = 1407};  // chosen: must be given
  describe_mixture(reading, defaults, 2, 0);
  Mixture& mixture = reading.config.mixture;
  mixture.normalised = false;
  if (fields.get_bool("norm_topk_prob").value_or(false))
    throw bad_input("norm_topk_prob is true; deepseek_v2 models do not divide by the sum of scores");
  const std::string method = fields.get_string("topk_method").value_or("greedy");
  if (method == "greedy")
    mixture.groups = mixture.chosen_groups = 1;
  else if (method != "group_limited_greedy")
    throw bad_input("topk_method is '{}'; supported are 'greedy' and 'group_limited_greedy'",
                    printable(method));
}

static void describe_v3(Reading& reading) {
  const JsonFields& fields = reading.fields;
  must_be(fields, "scoring_func", "sigmoid");
  must_be(fields, "topk_method", "noaux_tc");
  describe_attention(reading);
  const Mixture defaults{
      .experts = 256, .chosen = 8, .width = 2048, .groups = 8, .chosen_groups = 4, .scale = 2.5};
  describe_mixture(reading, defaults, 1, 3);
  Mixture& mixture = reading.config.mixture;
  mixture.normalised = fields.get_bool("norm_topk_prob").value_or(true);
  mixture.scores = RouterScores::sigmoid;
  mixture.group_best = 2;
  reading.config.names.router_correction = "mlp.gate.e_score_correction_bias";
}

std::span<const Family> deepseek() {
  static constexpr Family kAll[] = {// The head dimension is set with the rest of latent attention.
                                    {.model_type = "deepseek_v2",
                                     .class_prefix = "DeepseekV2",
                                     .describe = describe_v2,
                                     .pairs_neighbours = true,
                                     .head_dim = 64,
                                     .may_have_attention_bias = true},
                                    {.model_type = "deepseek_v3",
                                     .class_prefix = "DeepseekV3",
                                     .describe = describe_v3,
                                     .pairs_neighbours = true,
                                     .head_dim = 64,
                                     .may_have_attention_bias = true}};
  return kAll;
}

}  // namespace kvcodec::families
