// StarCoder2: layer norms, one switch for all biases, an MLP without gate, a window in all layers or none.
#include "formats/models/family.hpp"

namespace kvcodec::families {
namespace {

void set_starcoder2_parts(ModelConfig& config) {
  config.norm = NormKind::layer;
  config.gated_mlp = false;
}

void describe_starcoder2(Reading& reading) {
  ModelConfig& config = reading.config;
  config.qkv_bias = config.output_bias = config.mlp_bias = reading.fields.get_bool("use_bias").value_or(true);
  config.names.up = "mlp.c_fc", config.names.down = "mlp.c_proj";
  set_one_window(reading, window_of(reading.fields, 0));
}

void describe_starcoder2(gguf::Reading& reading) {
  // All published models have this window; llama.cpp writes no key for it.
  constexpr int kWindow = 4096;
  set_window(reading, kWindow);
}

}  // namespace

std::span<const Family> starcoder2() {
  static constexpr Family kAll[] = {{.model_type = "starcoder2",
                                     .class_prefix = "Starcoder2",
                                     .parts = set_starcoder2_parts,
                                     .describe = describe_starcoder2,
                                     .gguf = {.architecture = "starcoder2", .describe = describe_starcoder2},
                                     .norm_epsilon_field = "norm_epsilon",
                                     .norm_epsilon = 1e-5,
                                     .activation = Activation::gelu_tanh,
                                     .tied_embeddings = true}};
  return kAll;
}

}  // namespace kvcodec::families
