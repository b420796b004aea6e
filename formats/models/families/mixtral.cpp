// Mixtral: Mistral with experts in all layers.
#include "formats/models/families/family.hpp"

namespace kvcodec::families {
namespace {

constexpr int64_t kMixtralExperts = 8, kMixtralChosen = 2;

void describe_mixtral(Reading& reading) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  Mixture& mixture = config.mixture;
  mixture.experts =
      as_int("num_local_experts", fields.get_int("num_local_experts").value_or(kMixtralExperts));
  mixture.chosen =
      as_int("num_experts_per_tok", fields.get_int("num_experts_per_tok").value_or(kMixtralChosen));
  mixture.width = config.intermediate_size;
  mixture.layers.assign(static_cast<size_t>(config.num_layers), true);
  TensorNames& names = config.names;
  names.router = "block_sparse_moe.gate", names.experts = "block_sparse_moe.experts";
  names.expert_gate = "w1", names.expert_up = "w3", names.expert_down = "w2";
  const int64_t window = window_of(fields, 0);
  set_windows(config, sliding_layers(reading, [&](int) { return window > 0; }), window);
}

}  // namespace

const Family kMixtral = {.model_type = "mixtral",
                         .class_prefix = "Mixtral",
                         .describe = describe_mixtral,
                         .norm_epsilon = 1e-5,
                         .rope_theta = 1000000};

}  // namespace kvcodec::families
