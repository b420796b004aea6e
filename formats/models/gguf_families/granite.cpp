// Granite 3: Llama with four multipliers, each 0 where it is not used.
#include "formats/models/gguf_families/architecture.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::gguf {
namespace {

void describe_granite(Reading& reading) {
  const Fields& fields = reading.fields;
  ModelConfig& config = reading.config;
  const auto scale = [&](const char* name) {
    const double value = fields.number_or(name, 1);
    return value == 0 ? 1 : value;
  };
  config.embedding_scale = scale("embedding_scale");
  config.residual_scale = scale("residual_scale");
  config.attention_scale = fields.number_or("attention.scale", 0);
  const double divisor = fields.need_number("logit_scale");
  if (!(divisor > 0)) throw bad_input("{} is {}; it must be positive", fields.key("logit_scale"), divisor);
  config.logit_scale = 1 / divisor;
  if (!fields.get_flag("rope.scaling.finetuned").value_or(true))
    throw bad_input("{} is false: the model has no rotary embedding, which is not supported",
                    fields.key("rope.scaling.finetuned"));
  set_window(reading, 0);
}

}  // namespace

const Architecture kGranite = {
    .name = "granite", .family = "granite", .describe = describe_granite, .pairs_neighbours = true};

}  // namespace kvcodec::gguf
