// Phi 1, 1.5 and 2: layer norms, biases everywhere, heads turned in part; attention and an MLP without gate read the same
// normalised input.
#include "formats/models/families/family.hpp"

namespace kvcodec::families {
namespace {

void describe_phi(Reading& reading) {
  ModelConfig& config = reading.config;
  config.norm = NormKind::layer;
  config.qkv_bias = config.output_bias = config.mlp_bias = config.head_bias = true;
  config.gated_mlp = false;
  config.parallel_residual = true;
  if (reading.fields.get_bool("qk_layernorm").value_or(false)) config.qk_norm = QkNorm::heads;
  TensorNames& names = config.names;
  names.mlp_norm = names.attention_norm;
  names.final_norm = "final_layernorm";
  names.query_norm = "self_attn.q_layernorm", names.key_norm = "self_attn.k_layernorm";
  names.output = "self_attn.dense";
  names.up = "mlp.fc1", names.down = "mlp.fc2";
  set_one_window(reading, 0);
}

}  // namespace

const Family kPhi = {.model_type = "phi",
                     .class_prefix = "Phi",
                     .describe = describe_phi,
                     .norm_epsilon_field = "layer_norm_eps",
                     .norm_epsilon = 1e-5,
                     .activation = Activation::gelu_tanh,
                     .may_be_partial = true,
                     .partial_rotary = 0.5};

}  // namespace kvcodec::families
