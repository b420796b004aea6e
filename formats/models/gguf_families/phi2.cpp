// Phi 1, 1.5 and 2: layer norms, biases everywhere, heads turned in part; attention and an MLP without gate read the same
// normalised input.
#include "formats/models/gguf_families/architecture.hpp"

namespace kvcodec::gguf {
namespace {

void describe_phi2(Reading& reading) {
  ModelConfig& config = reading.config;
  config.norm = NormKind::layer;
  config.head_bias = true;
  config.gated_mlp = false;
  config.activation = Activation::gelu_tanh;
  config.parallel_residual = true;
  config.names.mlp_norm = config.names.attention_norm;
  set_window(reading, 0);
}

}  // namespace

const Architecture kPhi2 = {.name = "phi2",
                            .family = "phi",
                            .describe = describe_phi2,
                            .may_be_partial = true,
                            .norm_epsilon = "attention.layer_norm_epsilon"};

}  // namespace kvcodec::gguf
