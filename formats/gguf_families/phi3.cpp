// Phi 3, 3.5 and 4: the gate stands in the tensor of what it gates, before it.
#include "formats/gguf_families/architecture.hpp"

namespace kvcodec::gguf {
namespace {

void describe_phi3(Reading& reading) {
  reading.config.names.fused_gate_up = "ffn_up";
  set_window(reading, 0);
}

}  // namespace

const Architecture kPhi3 = {
    .name = "phi3", .family = "phi3", .describe = describe_phi3, .may_be_partial = true};

}  // namespace kvcodec::gguf
