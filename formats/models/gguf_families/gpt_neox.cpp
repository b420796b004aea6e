// GPT-NeoX and Pythia: layer norms, biases, an MLP without gate beside attention, heads turned in part.
#include "formats/models/gguf_families/architecture.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::gguf {
namespace {

void describe_gpt_neox(Reading& reading) {
  const Fields& fields = reading.fields;
  ModelConfig& config = reading.config;
  config.norm = NormKind::layer;
  config.gated_mlp = false;
  config.activation = Activation::gelu;
  const auto parallel = fields.get_flag("use_parallel_residual");
  if (!parallel) throw bad_input("key '{}' is missing", fields.key("use_parallel_residual"));
  config.parallel_residual = *parallel;
  set_window(reading, 0);
}

}  // namespace

const Architecture kGptNeoX = {.name = "gptneox",
                               .family = "gpt_neox",
                               .describe = describe_gpt_neox,
                               .may_be_partial = true,
                               .norm_epsilon = "attention.layer_norm_epsilon"};

}  // namespace kvcodec::gguf
