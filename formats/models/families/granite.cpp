// Granite 3: Llama with four multipliers, in GGUF files each 0 where it is not used.
#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

double inverse(std::string_view field, double divisor) {
  if (!(divisor > 0)) throw bad_input("{} is {}; it must be positive", field, divisor);
  return 1 / divisor;
}

void describe_granite(Reading& reading) {
  ModelConfig& config = reading.config;
  const auto multiplier = [&](const char* name) { return reading.fields.get_number(name).value_or(1); };
  config.embedding_scale = multiplier("embedding_multiplier");
  config.attention_scale = multiplier("attention_multiplier");
  config.residual_scale = multiplier("residual_multiplier");
  config.logit_scale = inverse("logits_scaling", multiplier("logits_scaling"));
}

void describe_granite(gguf::Reading& reading) {
  const gguf::Fields& fields = reading.fields;
  ModelConfig& config = reading.config;
  const auto scale = [&](const char* name) {
    const double value = fields.number_or(name, 1);
    return value == 0 ? 1 : value;
  };
  config.embedding_scale = scale("embedding_scale");
  config.residual_scale = scale("residual_scale");
  config.attention_scale = fields.number_or("attention.scale", 0);
  config.logit_scale = inverse(fields.key("logit_scale"), fields.need_number("logit_scale"));
  if (!fields.get_flag("rope.scaling.finetuned").value_or(true))
    throw bad_input("{} is false: the model has no rotary embedding, which is not supported",
                    fields.key("rope.scaling.finetuned"));
}

}  // namespace

std::span<const Family> granite() {
  static constexpr Family kAll[] = {
      {.model_type = "granite",
       .class_prefix = "Granite",
       .describe = describe_granite,
       .gguf = {.architecture = "granite", .describe = describe_granite, .pairs_neighbours = true},
       .may_have_attention_bias = true,
       .may_have_mlp_bias = true}};
  return kAll;
}

}  // namespace kvcodec::families
