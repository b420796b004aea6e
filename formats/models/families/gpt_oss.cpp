// gpt-oss: experts in all layers, with biases and a gate of their own; attention sinks; a window in every other layer.
// Its checkpoints are mostly MXFP4, which is read from GGUF files only: those in bf16 are.
#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

constexpr int64_t kGptOssExperts = 128, kGptOssChosen = 4, kGptOssSlidingWindow = 128;
constexpr double kLimit = 7, kSteepness = 1.702;  // of clamped_swiglu

void must_be(const JsonFields& fields, const char* name, double value) {
  if (const auto said = fields.get_number(name); said && *said != value)
    throw bad_input("{} is {}; only {} is supported", name, *said, value);
}

void set_gpt_oss_parts(ModelConfig& config) {
  config.activation = Activation::clamped_swiglu;  // whatever hidden_act says
  config.mixture.biases = true;
}

void describe_gpt_oss(Reading& reading) {
  const JsonFields& fields = reading.fields;
  must_be(fields, "swiglu_limit", kLimit);
  must_be(fields, "swiglu_alpha", kSteepness);
  if (!reading.rope) throw bad_input("rope_scaling is missing; gpt_oss models have it");
  read_local_experts(reading, kGptOssExperts, kGptOssChosen);
  TensorNames& names = reading.config.names;
  names.sinks = "self_attn.sinks";
  names.router = "mlp.router", names.experts = "mlp.experts";
  names.stacked_gate_up = "gate_up_proj", names.expert_down = "down_proj";
  set_windows(reading.config, sliding_layers(reading, [](int layer) { return layer % 2 == 0; }),
              window_of(fields, kGptOssSlidingWindow));
}

void describe_gpt_oss(gguf::Reading& reading) {
  ModelConfig& config = reading.config;
  config.names.mlp_norm = "post_attention_norm";
  config.names.sinks = "attn_sinks.weight";
  // All of these models say so; there is no key for it, and llama.cpp rounds the bounds.
  config.rope.scaling.whole_bounds = false;
  reading.fields.must_be("rope.freq_base_swa", config.rope.theta);
  set_windows(reading, sliding_layers(reading, 2), reading.fields.need_size("attention.sliding_window"));
}

}  // namespace

std::span<const Family> gpt_oss() {
  static constexpr Family kAll[] = {
      {.model_type = "gpt_oss",
       .class_prefix = "GptOss",
       .parts = set_gpt_oss_parts,
       .describe = describe_gpt_oss,
       .gguf = {.architecture = "gpt-oss", .describe = describe_gpt_oss, .may_have_experts = true},
       .norm_epsilon = 1e-5,
       .head_dim = 64,
       .rope_theta = 150000,
       .may_have_attention_bias = true,
       .attention_bias = true}};
  return kAll;
}

}  // namespace kvcodec::families
