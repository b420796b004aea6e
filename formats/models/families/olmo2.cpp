// OLMo 2: Llama with its norms behind attention and MLP, and norms of whole queries and keys.
#include "formats/models/families/family.hpp"

namespace kvcodec::families {
namespace {

void describe_olmo2(Reading& reading) {
  ModelConfig& config = reading.config;
  config.qk_norm = QkNorm::whole;
  config.names.attention_norm = config.names.mlp_norm = "";
  config.names.attention_out_norm = "post_attention_layernorm";
  config.names.mlp_out_norm = "post_feedforward_layernorm";
  set_one_window(reading, 0);
}

}  // namespace

const Family kOlmo2 = {.model_type = "olmo2",
                       .class_prefix = "Olmo2",
                       .describe = describe_olmo2,
                       .norm_epsilon = 1e-5,
                       .may_have_attention_bias = true};

}  // namespace kvcodec::families
