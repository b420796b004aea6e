// StarCoder2: layer norms, one switch for all biases, an MLP without gate, a window in all layers or none.
#include "formats/models/families/family.hpp"

namespace kvcodec::families {
namespace {

void describe_starcoder2(Reading& reading) {
  ModelConfig& config = reading.config;
  config.norm = NormKind::layer;
  config.qkv_bias = config.output_bias = config.mlp_bias = reading.fields.get_bool("use_bias").value_or(true);
  config.gated_mlp = false;
  config.names.up = "mlp.c_fc", config.names.down = "mlp.c_proj";
  set_one_window(reading, window_of(reading.fields, 0));
}

}  // namespace

const Family kStarcoder2 = {.model_type = "starcoder2",
                            .class_prefix = "Starcoder2",
                            .describe = describe_starcoder2,
                            .norm_epsilon_field = "norm_epsilon",
                            .norm_epsilon = 1e-5,
                            .activation = Activation::gelu_tanh,
                            .tied_embeddings = true};

}  // namespace kvcodec::families
