// StarCoder2: layer norms, biases, an MLP without gate, a window in all layers.
#include "formats/models/gguf_families/architecture.hpp"

namespace kvcodec::gguf {
namespace {

constexpr int kStarcoder2Window = 4096;

void describe_starcoder2(Reading& reading) {
  ModelConfig& config = reading.config;
  config.norm = NormKind::layer;
  config.gated_mlp = false;
  config.activation = Activation::gelu_tanh;
  // All published models have it; llama.cpp writes no key for it.
  set_window(reading, kStarcoder2Window);
}

}  // namespace

const Architecture kStarcoder2 = {.name = "starcoder2",
                                  .family = "starcoder2",
                                  .describe = describe_starcoder2,
                                  .norm_epsilon = "attention.layer_norm_epsilon"};

}  // namespace kvcodec::gguf
