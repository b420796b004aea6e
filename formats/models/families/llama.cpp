// Llama, and all that says it is one (TinyLlama, SmolLM 1 and 2 …).
#include "formats/models/families/family.hpp"

namespace kvcodec::families {
namespace {

void describe_llama(Reading& reading) {
  // Llama's code has no windows, whatever is said.
  set_one_window(reading, 0);
}

}  // namespace

const Family kLlama = {.model_type = "llama",
                       .class_prefix = "Llama",
                       .describe = describe_llama,
                       .may_have_attention_bias = true,
                       .may_have_mlp_bias = true};

}  // namespace kvcodec::families
