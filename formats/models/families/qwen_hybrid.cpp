// Qwen3-Next and Qwen3.5 (text): three layers in four mix tokens by the gated delta rule and keep no keys and values; the others have
// attention whose output is gated, with heads that are turned in part. Qwen3-Next has experts, and one for all tokens that is gated.

#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {

constexpr int64_t kFullInterval = 4;
constexpr int64_t kNextExperts = 512, kNextChosen = 10, kNextWidth = 512;

static void set_hybrid_parts(ModelConfig& config) {
  config.qk_norm = QkNorm::heads;
  config.norm_adds_one = true;
  config.output_gate = true;
}

/// layer_types, or every full_attention_interval-th layer has attention.
static std::vector<bool> delta_layers(const Reading& reading) {
  const auto count = static_cast<size_t>(reading.config.num_layers);
  std::vector<bool> layers = layers_of_type(reading, "linear_attention");
  if (!layers.empty()) return layers;
  const int64_t interval = reading.fields.get_int("full_attention_interval").value_or(kFullInterval);
  if (interval < 1) throw bad_input("full_attention_interval is {}; it must be positive", interval);
  for (size_t layer = 0; layer < count; ++layer)
    layers.push_back((layer + 1) % static_cast<size_t>(interval) != 0);
  return layers;
}

static void describe_hybrid(Reading& reading) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  config.delta = {.layers = delta_layers(reading),
                  .key_heads = int_of(fields, "linear_num_key_heads", 16),
                  .value_heads = int_of(fields, "linear_num_value_heads", 32),
                  .key_dim = int_of(fields, "linear_key_head_dim", 128),
                  .value_dim = int_of(fields, "linear_value_head_dim", 128),
                  .kernel = int_of(fields, "linear_conv_kernel_dim", 4)};
  set_delta_layers(config);
  config.names.delta = "linear_attn.";
}

static void describe_qwen3_next(Reading& reading) {
  describe_hybrid(reading);
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  config.names.of_delta.fused = "in_proj_qkvz", config.names.of_delta.numbers = "in_proj_ba";
  Mixture& mixture = config.mixture;
  mixture.experts = int_of(fields, "num_experts", kNextExperts);
  if (mixture.experts == 0) return;
  mixture.chosen = int_of(fields, "num_experts_per_tok", kNextChosen);
  mixture.width = int_of(fields, "moe_intermediate_size", kNextWidth);
  mixture.shared_width = int_of(fields, "shared_expert_intermediate_size", kNextWidth);
  mixture.normalised = fields.get_bool("norm_topk_prob").value_or(true);
  mixture.layers = sparse_layers(reading);
  TensorNames& names = config.names;
  names.router = "mlp.gate", names.experts = "mlp.experts";
  names.expert_gate = "gate_proj", names.expert_up = "up_proj", names.expert_down = "down_proj";
  names.shared_expert = "mlp.shared_expert", names.shared_expert_gate = "mlp.shared_expert_gate";
}

/// llama.cpp adds 1 to norms, and lays value heads of a Qwen3.5 in turns of key heads.
static void describe_gguf(gguf::Reading& reading) {
  const gguf::Fields& fields = reading.fields;
  ModelConfig& config = reading.config;
  DeltaLayers& delta = config.delta;
  delta.key_heads = fields.need_size("ssm.group_count");
  delta.value_heads = fields.need_size("ssm.time_step_rank");
  delta.key_dim = fields.need_size("ssm.state_size");
  delta.kernel = fields.need_size("ssm.conv_kernel");
  const int width = fields.need_size("ssm.inner_size");
  if (delta.value_heads < 1 || width % delta.value_heads != 0)
    throw bad_input("{} is {}; it must be a multiple of {} ({})", fields.key("ssm.inner_size"), width,
                    fields.key("ssm.time_step_rank"), delta.value_heads);
  delta.value_dim = width / delta.value_heads;
  TensorNames& names = config.names;
  names.fused_qkv = {};
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto has = [&](std::string_view name) {
      return fields.has_tensor(fmt::format("blk.{}.{}", layer, name));
    };
    delta.layers.push_back(has("ssm_a"));
    if (delta.layers.back()) continue;
    config.qkv_bias = has("attn_q.bias"), config.output_bias = has("attn_output.bias");
  }
  set_delta_layers(config);
  config.norm_adds_one = false;
  names.mlp_norm = "post_attention_norm";
  DeltaNames& own = names.of_delta;
  own = {.mixed = "attn_qkv",
         .gate = "attn_gate",
         .beta = "ssm_beta",
         .decay = "ssm_alpha",
         .kernel = "ssm_conv1d",
         .decay_bias = "ssm_dt.bias",
         .norm = "ssm_norm",
         .output = "ssm_out",
         .negative_rate = "ssm_a",
         .flat_kernel = true};
  delta.tiled = config.family != "qwen3_next";
  if (delta.tiled) return;
  own.numbers = "ssm_ba";
  if (fields.has_tensor("blk.0.ssm_in.weight")) own.fused = "ssm_in";  // of older files
  Mixture& mixture = config.mixture;
  mixture.shared_width = fields.size_or("expert_shared_feed_forward_length", mixture.width);
  names.shared_suffix = "_shexp", names.shared_expert_gate = "ffn_gate_inp_shexp";
}

std::span<const Family> qwen_hybrid() {
  static constexpr Family kAll[] = {
      {.model_type = "qwen3_next",
       .class_prefix = "Qwen3Next",
       .parts = set_hybrid_parts,
       .describe = describe_qwen3_next,
       .gguf = {.architecture = "qwen3next", .describe = describe_gguf, .may_have_experts = true},
       .head_dim = 256,
       .may_be_partial = true,
       .partial_rotary = 0.25,
       .may_have_attention_bias = true},
      {.model_type = "qwen3_5_text",
       .class_prefix = "Qwen3_5",
       .parts = set_hybrid_parts,
       .describe = describe_hybrid,
       .gguf = {.architecture = "qwen35", .describe = describe_gguf},
       .head_dim = 256,
       .may_be_partial = true,
       .partial_rotary = 0.25,
       .may_have_attention_bias = true}};
  return kAll;
}

}  // namespace kvcodec::families
