// OLMo 2: Llama with its norms behind attention and MLP, and norms of whole queries and keys. GGUF files of OLMo 3 say that
// they are of OLMo 2.
#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

void set_olmo2_parts(ModelConfig& config) {
  config.qk_norm = QkNorm::whole;
  config.names.attention_norm = config.names.mlp_norm = "";
}

void describe_olmo2(Reading& reading) {
  reading.config.names.attention_out_norm = "post_attention_layernorm";
  reading.config.names.mlp_out_norm = "post_feedforward_layernorm";
}

void describe_olmo2(gguf::Reading& reading) {
  if (reading.fields.size_or("attention.sliding_window", 0) > 0)
    throw bad_input("{} is there, as in OLMo 3, which is not supported; OLMo 2 is",
                    reading.fields.key("attention.sliding_window"));
  reading.config.names.attention_out_norm = "post_attention_norm";
  reading.config.names.mlp_out_norm = "post_ffw_norm";
}

}  // namespace

std::span<const Family> olmo2() {
  static constexpr Family kAll[] = {{.model_type = "olmo2",
                                     .class_prefix = "Olmo2",
                                     .parts = set_olmo2_parts,
                                     .describe = describe_olmo2,
                                     .gguf = {.architecture = "olmo2", .describe = describe_olmo2},
                                     .norm_epsilon = 1e-5,
                                     .may_have_attention_bias = true}};
  return kAll;
}

}  // namespace kvcodec::families
