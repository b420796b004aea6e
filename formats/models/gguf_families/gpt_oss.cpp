// gpt-oss: experts in all layers, with biases and a gate of their own; attention sinks; a window in every other layer.
#include "formats/models/gguf_families/architecture.hpp"

namespace kvcodec::gguf {
namespace {

void describe_gpt_oss(Reading& reading) {
  ModelConfig& config = reading.config;
  config.activation = Activation::clamped_swiglu;
  config.mixture.biases = true;
  config.names.mlp_norm = "post_attention_norm";
  config.names.sinks = "attn_sinks.weight";
  // All of these models say so; there is no key for it, and llama.cpp rounds the bounds.
  config.rope.scaling.whole_bounds = false;
  reading.fields.must_be("rope.freq_base_swa", config.rope.theta);
  set_windows(config, sliding_layers(reading, 2), reading.fields.need_size("attention.sliding_window"));
}

}  // namespace

const Architecture kGptOss = {
    .name = "gpt-oss", .family = "gpt_oss", .describe = describe_gpt_oss, .may_have_experts = true};

}  // namespace kvcodec::gguf
