// GPT-NeoX and Pythia: layer norms, biases, an MLP without gate beside attention, heads turned in part.
#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

void set_gpt_neox_parts(ModelConfig& config) {
  config.norm = NormKind::layer;
  config.gated_mlp = false;
}

void describe_gpt_neox(Reading& reading) {
  ModelConfig& config = reading.config;
  config.mlp_bias = true;
  config.parallel_residual = reading.fields.get_bool("use_parallel_residual").value_or(true);
  config.num_kv_heads = config.num_q_heads;
  TensorNames& names = config.names;
  names.prefix = "gpt_neox.";
  names.embedding = "embed_in", names.final_norm = "final_layer_norm", names.head = "embed_out";
  names.fused_qkv = "attention.query_key_value", names.fused_qkv_order = FusedQkv::heads;
  names.output = "attention.dense";
  names.up = "mlp.dense_h_to_4h", names.down = "mlp.dense_4h_to_h";
}

void describe_gpt_neox(gguf::Reading& reading) {
  const auto parallel = reading.fields.get_flag("use_parallel_residual");
  if (!parallel) throw bad_input("key '{}' is missing", reading.fields.key("use_parallel_residual"));
  reading.config.parallel_residual = *parallel;
}

}  // namespace

std::span<const Family> gpt_neox() {
  static constexpr Family kAll[] = {{.model_type = "gpt_neox",
                                     .class_prefix = "GPTNeoX",
                                     .parts = set_gpt_neox_parts,
                                     .describe = describe_gpt_neox,
                                     .gguf = {.architecture = "gptneox", .describe = describe_gpt_neox},
                                     .norm_epsilon_field = "layer_norm_eps",
                                     .norm_epsilon = 1e-5,
                                     .activation = Activation::gelu,
                                     .rope_theta_field = "rotary_emb_base",
                                     .partial_rotary_field = "rotary_pct",
                                     .may_be_partial = true,
                                     .partial_rotary = 0.25,
                                     .may_have_attention_bias = true,
                                     .attention_bias = true}};
  return kAll;
}

}  // namespace kvcodec::families
