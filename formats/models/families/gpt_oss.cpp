// gpt-oss: experts in all layers, with biases and a gate of their own; attention sinks; a window in every other layer.
// Its checkpoints are mostly MXFP4, which is read from GGUF files only (formats/models/gguf_families/): those in bf16 are.
#include "formats/models/families/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

constexpr int64_t kGptOssExperts = 128, kGptOssChosen = 4, kGptOssSlidingWindow = 128;
constexpr double kLimit = 7, kSteepness = 1.702;  // of clamped_swiglu

void must_be(const JsonFields& fields, const char* name, double value) {
  if (const auto said = fields.get_number(name); said && *said != value)
    throw bad_input("{} is {}; only {} is supported", name, *said, value);
}

void describe_gpt_oss(Reading& reading) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  must_be(fields, "swiglu_limit", kLimit);
  must_be(fields, "swiglu_alpha", kSteepness);
  if (!reading.rope) throw bad_input("rope_scaling is missing; gpt_oss models have it");
  config.activation = Activation::clamped_swiglu;  // whatever hidden_act says
  Mixture& mixture = config.mixture;
  mixture.experts = as_int("num_local_experts", fields.get_int("num_local_experts").value_or(kGptOssExperts));
  mixture.chosen =
      as_int("num_experts_per_tok", fields.get_int("num_experts_per_tok").value_or(kGptOssChosen));
  mixture.width = config.intermediate_size;
  mixture.biases = true;
  mixture.layers.assign(static_cast<size_t>(config.num_layers), true);
  TensorNames& names = config.names;
  names.sinks = "self_attn.sinks";
  names.router = "mlp.router", names.experts = "mlp.experts";
  names.stacked_gate_up = "gate_up_proj", names.expert_down = "down_proj";
  set_windows(config, sliding_layers(reading, [](int layer) { return layer % 2 == 0; }),
              window_of(fields, kGptOssSlidingWindow));
}

}  // namespace

const Family kGptOss = {.model_type = "gpt_oss",
                        .class_prefix = "GptOss",
                        .describe = describe_gpt_oss,
                        .norm_epsilon = 1e-5,
                        .head_dim = 64,
                        .rope_theta = 150000,
                        .may_have_attention_bias = true,
                        .attention_bias = true};

}  // namespace kvcodec::families
