// OLMo 2: norms behind attention and MLP, and of whole queries and keys. Files of OLMo 3 say this too.
#include "formats/models/gguf_families/architecture.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::gguf {
namespace {

void describe_olmo2(Reading& reading) {
  ModelConfig& config = reading.config;
  if (reading.fields.size_or("attention.sliding_window", 0) > 0)
    throw bad_input("{} is there, as in OLMo 3, which is not supported; OLMo 2 is",
                    reading.fields.key("attention.sliding_window"));
  config.qk_norm = QkNorm::whole;
  config.names.attention_norm = config.names.mlp_norm = "";
  config.names.attention_out_norm = "post_attention_norm";
  config.names.mlp_out_norm = "post_ffw_norm";
  set_window(reading, 0);
}

}  // namespace

const Architecture kOlmo2 = {.name = "olmo2", .family = "olmo2", .describe = describe_olmo2};

}  // namespace kvcodec::gguf
