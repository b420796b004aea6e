// Granite 3: Llama with four multipliers.
#include "formats/models/families/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

void describe_granite(Reading& reading) {
  ModelConfig& config = reading.config;
  const auto multiplier = [&](const char* name) { return reading.fields.get_number(name).value_or(1); };
  config.embedding_scale = multiplier("embedding_multiplier");
  config.attention_scale = multiplier("attention_multiplier");
  config.residual_scale = multiplier("residual_multiplier");
  const double divisor = multiplier("logits_scaling");
  if (!(divisor > 0)) throw bad_input("logits_scaling is {}; it must be positive", divisor);
  config.logit_scale = 1 / divisor;
  set_one_window(reading, 0);
}

}  // namespace

const Family kGranite = {.model_type = "granite",
                         .class_prefix = "Granite",
                         .describe = describe_granite,
                         .may_have_attention_bias = true,
                         .may_have_mlp_bias = true};

}  // namespace kvcodec::families
