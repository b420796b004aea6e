// Phi 1, 1.5 and 2: layer norms, biases everywhere, heads turned in part; attention and an MLP without gate read the same
// normalised input.
#include "formats/models/family.hpp"

namespace kvcodec::families {
namespace {

void set_phi_parts(ModelConfig& config) {
  config.norm = NormKind::layer;
  config.head_bias = true;
  config.gated_mlp = false;
  config.parallel_residual = true;
  config.names.mlp_norm = config.names.attention_norm;
}

void describe_phi(Reading& reading) {
  ModelConfig& config = reading.config;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  if (reading.fields.get_bool("qk_layernorm").value_or(false)) config.qk_norm = QkNorm::heads;
  TensorNames& names = config.names;
  names.final_norm = "final_layernorm";
  names.query_norm = "self_attn.q_layernorm", names.key_norm = "self_attn.k_layernorm";
  names.output = "self_attn.dense";
  names.up = "mlp.fc1", names.down = "mlp.fc2";
}

}  // namespace

std::span<const Family> phi() {
  static constexpr Family kAll[] = {{.model_type = "phi",
                                     .class_prefix = "Phi",
                                     .parts = set_phi_parts,
                                     .describe = describe_phi,
                                     .gguf = {.architecture = "phi2"},
                                     .norm_epsilon_field = "layer_norm_eps",
                                     .norm_epsilon = 1e-5,
                                     .activation = Activation::gelu_tanh,
                                     .may_be_partial = true,
                                     .partial_rotary = 0.5}};
  return kAll;
}

}  // namespace kvcodec::families
