// Qwen3-Next and Qwen3.5 (text): three layers in four mix tokens by the gated delta rule and keep no keys and values; the others have
// attention whose output is gated, with heads that are turned in part. Qwen3-Next has experts, and one for all tokens that is gated.
#include <algorithm>

#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

constexpr int64_t kFullInterval = 4;
constexpr int64_t kNextExperts = 512, kNextChosen = 10, kNextWidth = 512;

void set_hybrid_parts(ModelConfig& config) {
  config.qk_norm = QkNorm::heads;
  config.norm_adds_one = true;
  config.output_gate = true;
}

/// layer_types, or every full_attention_interval-th layer has attention.
std::vector<bool> delta_layers(const Reading& reading) {
  const auto count = static_cast<size_t>(reading.config.num_layers);
  std::vector<bool> layers;
  if (const nlohmann::json* types = reading.fields.find("layer_types")) {
    if (types->is_array() && types->size() == count)
      for (const nlohmann::json& type : *types)
        if (type == "linear_attention" || type == "full_attention")
          layers.push_back(type == "linear_attention");
    if (layers.size() != count)
      throw bad_input("layer_types must say 'linear_attention' or 'full_attention' for each of {} layers",
                      count);
    return layers;
  }
  const int64_t interval = reading.fields.get_int("full_attention_interval").value_or(kFullInterval);
  if (interval < 1) throw bad_input("full_attention_interval is {}; it must be positive", interval);
  for (size_t layer = 0; layer < count; ++layer)
    layers.push_back((layer + 1) % static_cast<size_t>(interval) != 0);
  return layers;
}

void describe_hybrid(Reading& reading) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  config.delta = {.layers = delta_layers(reading),
                  .key_heads = int_of(fields, "linear_num_key_heads", 16),
                  .value_heads = int_of(fields, "linear_num_value_heads", 32),
                  .key_dim = int_of(fields, "linear_key_head_dim", 128),
                  .value_dim = int_of(fields, "linear_value_head_dim", 128),
                  .kernel = int_of(fields, "linear_conv_kernel_dim", 4)};
  for (const bool delta : config.delta.layers)
    config.layer_rope.push_back(delta ? LayerRope::none : LayerRope::usual);
  config.window.assign(config.delta.layers.size(), 0);
  TensorNames& names = config.names;
  names.delta = "linear_attn.";
}

void describe_qwen3_next(Reading& reading) {
  describe_hybrid(reading);
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  config.names.delta_fused = true;
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

}  // namespace

std::span<const Family> qwen_hybrid() {
  static constexpr Family kAll[] = {{.model_type = "qwen3_next",
                                     .class_prefix = "Qwen3Next",
                                     .parts = set_hybrid_parts,
                                     .describe = describe_qwen3_next,
                                     .head_dim = 256,
                                     .may_be_partial = true,
                                     .partial_rotary = 0.25,
                                     .may_have_attention_bias = true},
                                    {.model_type = "qwen3_5_text",
                                     .class_prefix = "Qwen3_5",
                                     .parts = set_hybrid_parts,
                                     .describe = describe_hybrid,
                                     .head_dim = 256,
                                     .may_be_partial = true,
                                     .partial_rotary = 0.25,
                                     .may_have_attention_bias = true}};
  return kAll;
}

}  // namespace kvcodec::families
