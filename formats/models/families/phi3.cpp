// Phi 3, 3.5 and 4: Llama with fused projections, longrope, a window in all layers, and heads turned in part.
#include "formats/models/families/family.hpp"

namespace kvcodec::families {
namespace {

void describe_phi3(Reading& reading) {
  ModelConfig& config = reading.config;
  config.names.fused_qkv = "self_attn.qkv_proj";
  config.names.fused_gate_up = "mlp.gate_up_proj";
  const int64_t window = window_of(reading.fields, 0);
  set_windows(config, sliding_layers(reading, [&](int) { return window > 0; }), window);
}

}  // namespace

const Family kPhi3 = {.model_type = "phi3",
                      .class_prefix = "Phi3",
                      .describe = describe_phi3,
                      .norm_epsilon = 1e-5,
                      .original_positions = 4096,
                      .may_be_partial = true};

}  // namespace kvcodec::families
