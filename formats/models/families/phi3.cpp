// Phi 3, 3.5 and 4: Llama with fused projections, longrope, a window in all layers, and heads turned in part.
#include "formats/models/family.hpp"

namespace kvcodec::families {
namespace {

void describe_phi3(Reading& reading) {
  reading.config.names.fused_qkv = "self_attn.qkv_proj";
  reading.config.names.fused_gate_up = "mlp.gate_up_proj";
  set_window_by_types(reading, window_of(reading.fields, 0));
}

/// The first files of Phi 3 mini and medium with a context of 4096 have no key for the window.
int window_unsaid(const ModelConfig& config) {
  constexpr int kContext = 4096, kWindow = 2047, kLayersMini = 32, kLayersMedium = 40;
  const bool is_first = config.num_layers == kLayersMini || config.num_layers == kLayersMedium;
  return is_first && config.max_positions == kContext ? kWindow : 0;
}

void describe_phi3(gguf::Reading& reading) {
  // The gate stands in the tensor of what it gates, before it.
  reading.config.names.fused_gate_up = "ffn_up";
  set_window(reading, window_unsaid(reading.config));
}

}  // namespace

std::span<const Family> phi3() {
  static constexpr Family kAll[] = {{.model_type = "phi3",
                                     .class_prefix = "Phi3",
                                     .describe = describe_phi3,
                                     .gguf = {.architecture = "phi3", .describe = describe_phi3},
                                     .norm_epsilon = 1e-5,
                                     .original_positions = 4096,
                                     .may_be_partial = true}};
  return kAll;
}

}  // namespace kvcodec::families
