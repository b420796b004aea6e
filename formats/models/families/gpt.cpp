// GPT-NeoX and Pythia: layer norms, biases, an MLP without gate beside attention, heads turned in part.
// gpt-oss: experts in all layers, with biases and their own gate; attention sinks; a window in every other layer. Its checkpoints
// are mostly MXFP4.
// StarCoder2: layer norms, one switch for all biases, an MLP without gate, a window in all layers or none.
// Phi 1, 1.5 and 2: layer norms, biases everywhere, heads turned in part; attention and an MLP without gate read the same
// normalised input.
#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

// GPT-NeoX ------------------------------------------------------------------------------------------

void set_layer_norm_parts(ModelConfig& config) {
  config.norm = NormKind::layer;
  config.gated_mlp = false;
}

void describe_gpt_neox(Reading& reading) {
  ModelConfig& config = reading.config;
  config.mlp_bias = true;
  config.parallel_residual = reading.fields.get_bool("use_parallel_residual").value_or(true);
  config.num_kv_heads = config.num_q_heads;
  TensorNames& names = config.names;
  names.prefix = "gpt_neox.";
  names.embedding = "embed_in", names.final_norm = "final_layer_norm", names.head = "embed_out";
  names.fused_qkv = "attention.query_key_value", names.fused_qkv_order = FusedQkv::heads;
  names.output = "attention.dense";
  names.up = "mlp.dense_h_to_4h", names.down = "mlp.dense_4h_to_h";
}

void describe_gpt_neox(gguf::Reading& reading) {
  const auto parallel = reading.fields.get_flag("use_parallel_residual");
  if (!parallel) throw bad_input("key '{}' is missing", reading.fields.key("use_parallel_residual"));
  reading.config.parallel_residual = *parallel;
}

// gpt-oss -------------------------------------------------------------------------------------------

constexpr int64_t kGptOssExperts = 128, kGptOssChosen = 4, kGptOssSlidingWindow = 128;
constexpr double kLimit = 7, kSteepness = 1.702;  // of clamped_swiglu

void must_be(const JsonFields& fields, const char* name, double value) {
  if (const auto said = fields.get_number(name); said && *said != value)
    throw bad_input("{} is {}; only {} is supported", name, *said, value);
}

void set_gpt_oss_parts(ModelConfig& config) {
  config.activation = Activation::clamped_swiglu;  // regardless of hidden_act
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
  set_windows(reading, window_of(fields, kGptOssSlidingWindow), [](int layer) { return layer % 2 == 0; });
}

void describe_gpt_oss(gguf::Reading& reading) {
  ModelConfig& config = reading.config;
  config.names.mlp_norm = "post_attention_norm";
  config.names.sinks = "attn_sinks.weight";
  // All of these models have this setting; there is no key for it, and llama.cpp rounds the bounds.
  config.rope.scaling.whole_bounds = false;
  reading.fields.must_be("rope.freq_base_swa", config.rope.theta);
  set_windows(reading, sliding_layers(reading, 2), reading.fields.need_size("attention.sliding_window"));
}

// StarCoder2 ----------------------------------------------------------------------------------------

void describe_starcoder2(Reading& reading) {
  ModelConfig& config = reading.config;
  config.qkv_bias = config.output_bias = config.mlp_bias = reading.fields.get_bool("use_bias").value_or(true);
  config.names.up = "mlp.c_fc", config.names.down = "mlp.c_proj";
  set_one_window(reading, window_of(reading.fields, 0));
}

void describe_starcoder2(gguf::Reading& reading) {
  // All published models have this window; llama.cpp writes no key for it.
  constexpr int kWindow = 4096;
  set_window(reading, kWindow);
}

// Phi 1 and 2 ---------------------------------------------------------------------------------------

void set_phi_parts(ModelConfig& config) {
  config.norm = NormKind::layer;
  config.head_bias = true;
  config.gated_mlp = false;
  config.parallel_residual = true;
  config.names.mlp_norm = config.names.attention_norm;
}

void describe_phi(Reading& reading) {
  ModelConfig& config = reading.config;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  if (reading.fields.get_bool("qk_layernorm").value_or(false)) config.qk_norm = QkNorm::heads;
  TensorNames& names = config.names;
  names.final_norm = "final_layernorm";
  names.query_norm = "self_attn.q_layernorm", names.key_norm = "self_attn.k_layernorm";
  names.output = "self_attn.dense";
  names.up = "mlp.fc1", names.down = "mlp.fc2";
}

}  // namespace

std::span<const Family> gpt() {
  static constexpr Family kAll[] = {
      {.model_type = "gpt_neox",
       .class_prefix = "GPTNeoX",
       .parts = set_layer_norm_parts,
       .describe = describe_gpt_neox,
       .gguf = {.architecture = "gptneox", .describe = describe_gpt_neox},
       .norm_epsilon_field = "layer_norm_eps",
       .norm_epsilon = 1e-5,
       .activation = Activation::gelu,
       .rope_theta_field = "rotary_emb_base",
       .partial_rotary_field = "rotary_pct",
       .may_be_partial = true,
       .partial_rotary = 0.25,
       .may_have_attention_bias = true,
       .attention_bias = true},
      {.model_type = "gpt_oss",
       .class_prefix = "GptOss",
       .parts = set_gpt_oss_parts,
       .describe = describe_gpt_oss,
       .gguf = {.architecture = "gpt-oss", .describe = describe_gpt_oss, .may_have_experts = true},
       .norm_epsilon = 1e-5,
       .head_dim = 64,
       .rope_theta = 150000,
       .may_have_attention_bias = true,
       .attention_bias = true},
      {.model_type = "starcoder2",
       .class_prefix = "Starcoder2",
       .parts = set_layer_norm_parts,
       .describe = describe_starcoder2,
       .gguf = {.architecture = "starcoder2", .describe = describe_starcoder2},
       .norm_epsilon_field = "norm_epsilon",
       .norm_epsilon = 1e-5,
       .activation = Activation::gelu_tanh,
       .tied_embeddings = true},
      {.model_type = "phi",
       .class_prefix = "Phi",
       .parts = set_phi_parts,
       .describe = describe_phi,
       .gguf = {.architecture = "phi2"},
       .norm_epsilon_field = "layer_norm_eps",
       .norm_epsilon = 1e-5,
       .activation = Activation::gelu_tanh,
       .may_be_partial = true,
       .partial_rotary = 0.5}};
  return kAll;
}

}  // namespace kvcodec::families
