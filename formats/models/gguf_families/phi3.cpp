// Phi 3, 3.5 and 4: the gate stands in the tensor of what it gates, before it.
#include "formats/models/gguf_families/architecture.hpp"

namespace kvcodec::gguf {
namespace {

/// The first files of Phi 3 mini and medium with a context of 4096 have no key for the window.
int window_unsaid(const ModelConfig& config) {
  constexpr int kContext = 4096, kWindow = 2047, kLayersMini = 32, kLayersMedium = 40;
  const bool is_first = config.num_layers == kLayersMini || config.num_layers == kLayersMedium;
  return is_first && config.max_positions == kContext ? kWindow : 0;
}

void describe_phi3(Reading& reading) {
  reading.config.names.fused_gate_up = "ffn_up";
  set_window(reading, window_unsaid(reading.config));
}

}  // namespace

const Architecture kPhi3 = {
    .name = "phi3", .family = "phi3", .describe = describe_phi3, .may_be_partial = true};

}  // namespace kvcodec::gguf
