// GPT-NeoX and Pythia: layer norms, biases, an MLP without gate beside attention, heads turned in part.
// gpt-oss: experts in all layers, with biases and their own gate; attention sinks; a window in every other layer. Its checkpoints
// are mostly MXFP4.
// StarCoder2: layer norms, one switch for all biases, an MLP without gate, a window in all layers or none.
// Phi 1, 1.5 and 2: layer norms, biases everywhere, heads turned in part; attention and an MLP without gate read the same
// normalised input.
// GPT-2: layer norms, biases everywhere, an MLP without gate; positions are learned vectors, and heads are not turned. Checkpoints hold
// matrices transposed.
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

// GPT-2 -------------------------------------------------------------------------------------------

void set_gpt2_parts(ModelConfig& config) {
  set_layer_norm_parts(config);
  config.layer_rope.assign(static_cast<size_t>(config.num_layers), LayerRope::none);
}

void rename_gpt2(nlohmann::json& config) {
  rename_field(config, "n_embd", "hidden_size");
  rename_field(config, "n_layer", "num_hidden_layers");
  rename_field(config, "n_head", "num_attention_heads");
  rename_field(config, "n_positions", "max_position_embeddings");
  rename_field(config, "n_inner", "intermediate_size");
  const JsonFields fields(config);
  if (!fields.find("intermediate_size"))
    config["intermediate_size"] = 4 * int64_t{int_of(fields, "hidden_size", 0)};
}

void describe_gpt2(Reading& reading) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  for (const char* name : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    if (fields.get_bool(name).value_or(false)) throw bad_input("{} is true; only false is supported", name);
  if (!fields.get_bool("scale_attn_weights").value_or(true)) config.attention_scale = 1;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  TensorNames& names = config.names;
  names.prefix = "transformer.", names.layers = "h", names.transposed = true;
  names.embedding = "wte", names.positions = "wpe", names.final_norm = "ln_f";
  names.attention_norm = "ln_1", names.mlp_norm = "ln_2";
  names.fused_qkv = "attn.c_attn", names.output = "attn.c_proj";
  names.up = "mlp.c_fc", names.down = "mlp.c_proj";
}

void describe_gpt2(gguf::Reading& reading) { reading.config.names.positions = "position_embd"; }

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
       .partial_rotary = 0.5},
      {.model_type = "gpt2",
       .class_prefix = "GPT2",
       .parts = set_gpt2_parts,
       .describe = describe_gpt2,
       .rename = rename_gpt2,
       .gguf = {.architecture = "gpt2", .describe = describe_gpt2},
       .norm_epsilon_field = "layer_norm_epsilon",
       .norm_epsilon = 1e-5,
       .activation_field = "activation_function",
       .activation = Activation::gelu_tanh,
       .tied_embeddings = true}};
  return kAll;
}

}  // namespace kvcodec::families
