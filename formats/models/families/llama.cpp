// Llama, and all that says it is one (TinyLlama, SmolLM 1 and 2 …); Mistral: Llama with a window in all layers or none;
// Mixtral: Mistral with experts in all layers. GGUF files of all three have the architecture llama.
// Granite 3: Llama with four multipliers; in GGUF files each is 0 if it is not used.
// OLMo 2: Llama with its norms after attention and MLP, and norms of whole queries and keys. GGUF files of OLMo 3 claim to be OLMo
// 2.
// SmolLM 3: Llama without a rotary embedding in some layers, by default every fourth.
// Qwen 2 and 2.5: biases on queries, keys and values; windows from some layer on, if they are switched on. Qwen 3:
// norms of heads instead of the biases, and experts in most layers of its mixtures.
// Phi 3, 3.5 and 4: Llama with fused projections, longrope, a window in all layers, and heads turned in part.

#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

// Llama, Mistral, Mixtral ---------------------------------------------------------------------------

constexpr int64_t kMistralSlidingWindow = 4096;
constexpr int64_t kMixtralExperts = 8, kMixtralChosen = 2;

void describe_mistral(Reading& reading) {
  set_one_window(reading, window_of(reading.fields, kMistralSlidingWindow));
}

void describe_mixtral(Reading& reading) {
  read_local_experts(reading, kMixtralExperts, kMixtralChosen);
  TensorNames& names = reading.config.names;
  names.router = "block_sparse_moe.gate", names.experts = "block_sparse_moe.experts";
  names.expert_gate = "w1", names.expert_up = "w3", names.expert_down = "w2";
  set_windows(reading, window_of(reading.fields, 0));
}

/// Some files of Llama 3.1 were made before its scaling was known and lack it.
void note_lost_scaling(const gguf::Reading& reading) {
  constexpr double kTheta = 500000;
  constexpr int kContext = 131072;
  const Rope& rope = reading.config.rope;
  if (rope.theta != kTheta || reading.config.max_positions != kContext ||
      rope.scaling.kind != RopeScaling::Kind::none || reading.fields.has("rope.scaling.type"))
    return;
  reading.notes.push_back(fmt::format(
      "{}: has the context and the rotary base of Llama 3.1, but not the tensor rope_freqs.weight, as files made before August "
      "2024; if it is Llama 3.1, its keys are turned otherwise than the model's",
      reading.fields.file().name()));
}

void describe_llama(gguf::Reading& reading) {
  note_lost_scaling(reading);
  if (reading.config.mixture.experts > 0) reading.config.family = "mixtral";
}

// Granite -------------------------------------------------------------------------------------------

double inverse(std::string_view field, double divisor) {
  if (!(divisor > 0)) throw bad_input("{} is {}; it must be positive", field, divisor);
  return 1 / divisor;
}

void describe_granite(Reading& reading) {
  ModelConfig& config = reading.config;
  const auto multiplier = [&](const char* name) { return reading.fields.get_number(name).value_or(1); };
  config.embedding_scale = multiplier("embedding_multiplier");
  config.attention_scale = multiplier("attention_multiplier");
  config.residual_scale = multiplier("residual_multiplier");
  config.logit_scale = inverse("logits_scaling", multiplier("logits_scaling"));
}

void describe_granite(gguf::Reading& reading) {
  const gguf::Fields& fields = reading.fields;
  ModelConfig& config = reading.config;
  const auto scale = [&](const char* name) {
    const double value = fields.number_or(name, 1);
    return value == 0 ? 1 : value;
  };
  config.embedding_scale = scale("embedding_scale");
  config.residual_scale = scale("residual_scale");
  config.attention_scale = fields.number_or("attention.scale", 0);
  config.logit_scale = inverse(fields.key("logit_scale"), fields.need_number("logit_scale"));
  if (!fields.get_flag("rope.scaling.finetuned").value_or(true))
    throw bad_input("{} is false: the model has no rotary embedding, which is not supported",
                    fields.key("rope.scaling.finetuned"));
}

// OLMo 2 --------------------------------------------------------------------------------------------

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

// SmolLM 3 ------------------------------------------------------------------------------------------

constexpr int64_t kInterval = 4;

/// no_rope_layers is 1 for the layers that have an embedding.
std::vector<LayerRope> layer_rope(const Reading& reading) {
  const int layers = reading.config.num_layers;
  std::vector<LayerRope> ropes;
  if (const nlohmann::json* list = reading.fields.find("no_rope_layers")) {
    if (list->is_array() && list->size() >= static_cast<size_t>(layers))
      for (size_t i = 0; i < static_cast<size_t>(layers); ++i)
        if ((*list)[i] == 0 || (*list)[i] == 1)
          ropes.push_back((*list)[i] == 1 ? LayerRope::usual : LayerRope::none);
    if (ropes.size() != static_cast<size_t>(layers))
      throw bad_input("no_rope_layers must list 0 or 1 for each of {} layers", layers);
    return ropes;
  }
  const int64_t interval = reading.fields.get_int("no_rope_layer_interval").value_or(kInterval);
  if (interval < 1) throw bad_input("no_rope_layer_interval is {}; it must be positive", interval);
  for (int layer = 0; layer < layers; ++layer)
    ropes.push_back((layer + 1) % interval == 0 ? LayerRope::none : LayerRope::usual);
  return ropes;
}

void describe_smollm3(Reading& reading) {
  ModelConfig& config = reading.config;
  config.layer_rope = layer_rope(reading);
  const bool slides = reading.fields.get_bool("use_sliding_window").value_or(false);
  const int64_t window = slides ? window_of(reading.fields, 0) : 0;
  set_windows(reading, window,
              [&](int layer) { return window > 0 && config.rope_of(layer) == LayerRope::none; });
}

/// No key gives the layers without a rotary embedding: every fourth.
void describe_smollm3(gguf::Reading& reading) {
  for (int layer = 0; layer < reading.config.num_layers; ++layer)
    reading.config.layer_rope.push_back((layer + 1) % kInterval == 0 ? LayerRope::none : LayerRope::usual);
  set_no_window(reading);
}

// Qwen ----------------------------------------------------------------------------------------------

constexpr int64_t kQwenSlidingWindow = 4096;
constexpr int64_t kMaxWindowLayers = 28;  // layers below it never have a window
constexpr int kQwen3HeadDim = 128;
constexpr int64_t kQwenExperts = 128, kQwenChosen = 8, kExpertWidth = 768;

void read_qwen_windows(Reading& reading) {
  const JsonFields& fields = reading.fields;
  int64_t window = window_of(fields, kQwenSlidingWindow);
  if (!fields.get_bool("use_sliding_window").value_or(false)) window = 0;
  const int64_t first = fields.get_int("max_window_layers").value_or(kMaxWindowLayers);
  set_windows(reading, window, [&](int layer) { return window > 0 && layer >= first; });
}

void set_qwen2_parts(ModelConfig& config) { config.qkv_bias = true; }
void set_qwen3_parts(ModelConfig& config) { config.qk_norm = QkNorm::heads; }

void describe_qwen3_moe(Reading& reading) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  Mixture& mixture = config.mixture;
  const char* const field = fields.find("num_experts") ? "num_experts" : "num_local_experts";
  mixture.experts = int_of(fields, field, kQwenExperts);
  if (mixture.experts < 1) throw bad_input("{} is {}; it must be positive", field, mixture.experts);
  mixture.chosen = int_of(fields, "num_experts_per_tok", kQwenChosen);
  mixture.width = int_of(fields, "moe_intermediate_size", kExpertWidth);
  mixture.normalised = fields.get_bool("norm_topk_prob").value_or(false);
  mixture.layers = sparse_layers(reading);
  TensorNames& names = config.names;
  names.router = "mlp.gate", names.experts = "mlp.experts";
  names.expert_gate = "gate_proj", names.expert_up = "up_proj", names.expert_down = "down_proj";
  const bool use_window = fields.get_bool("use_sliding_window").value_or(false);
  set_windows(reading, use_window ? window_of(fields, kQwenSlidingWindow) : 0);
}

// Phi 3 ---------------------------------------------------------------------------------------------

void describe_phi3(Reading& reading) {
  reading.config.names.fused_qkv = "self_attn.qkv_proj";
  reading.config.names.fused_gate_up = "mlp.gate_up_proj";
  set_windows(reading, window_of(reading.fields, 0));
}

void describe_phi3(gguf::Reading& reading) {
  // The gate is in the tensor of the values that it multiplies, before them.
  reading.config.names.fused_gate_up = "ffn_up";
  // The first files of Phi 3 mini and medium with a context of 4096 have no key for the window.
  constexpr int kContext = 4096, kWindow = 2047, kLayersMini = 32, kLayersMedium = 40;
  const int layers = reading.config.num_layers;
  const bool is_first = layers == kLayersMini || layers == kLayersMedium;
  set_window(reading, is_first && reading.config.max_positions == kContext ? kWindow : 0);
}

}  // namespace

std::span<const Family> llama() {
  static constexpr Family kAll[] = {
      {.model_type = "llama",
       .class_prefix = "Llama",
       .gguf = {.architecture = "llama",
                .describe = describe_llama,
                .pairs_neighbours = true,
                .may_have_experts = true},
       .may_have_attention_bias = true,
       .may_have_mlp_bias = true},
      // GGUF files of these two have the architecture llama.
      {.model_type = "mistral",
       .class_prefix = "Mistral",
       .describe = describe_mistral,
       .gguf = {.pairs_neighbours = true}},
      {.model_type = "mixtral",
       .class_prefix = "Mixtral",
       .describe = describe_mixtral,
       .gguf = {.pairs_neighbours = true},
       .norm_epsilon = 1e-5,
       .rope_theta = 1000000},
      {.model_type = "granite",
       .class_prefix = "Granite",
       .describe = describe_granite,
       .gguf = {.architecture = "granite", .describe = describe_granite, .pairs_neighbours = true},
       .may_have_attention_bias = true,
       .may_have_mlp_bias = true},
      {.model_type = "olmo2",
       .class_prefix = "Olmo2",
       .parts = set_olmo2_parts,
       .describe = describe_olmo2,
       .gguf = {.architecture = "olmo2", .describe = describe_olmo2},
       .norm_epsilon = 1e-5,
       .may_have_attention_bias = true},
      {.model_type = "smollm3",
       .class_prefix = "SmolLM3",
       .describe = describe_smollm3,
       .gguf = {.architecture = "smollm3", .describe = describe_smollm3, .pairs_neighbours = true},
       .tied_embeddings = true,
       .rope_theta = 2000000,
       .may_have_attention_bias = true,
       .may_have_mlp_bias = true},
      // GGUF files with a key for the window got it from a config.json that switches windows off.
      {.model_type = "qwen2",
       .class_prefix = "Qwen2",
       .parts = set_qwen2_parts,
       .describe = read_qwen_windows,
       .gguf = {.architecture = "qwen2", .describe = gguf::set_no_window}},
      {.model_type = "qwen3",
       .class_prefix = "Qwen3",
       .parts = set_qwen3_parts,
       .describe = read_qwen_windows,
       .gguf = {.architecture = "qwen3", .describe = gguf::set_no_window},
       .head_dim = kQwen3HeadDim,
       .may_have_attention_bias = true},
      {.model_type = "qwen3_moe",
       .class_prefix = "Qwen3Moe",
       .parts = set_qwen3_parts,
       .describe = describe_qwen3_moe,
       .gguf = {.architecture = "qwen3moe", .describe = gguf::set_no_window, .may_have_experts = true},
       .may_have_attention_bias = true},
      {.model_type = "phi3",
       .class_prefix = "Phi3",
       .describe = describe_phi3,
       .gguf = {.architecture = "phi3", .describe = describe_phi3},
       .norm_epsilon = 1e-5,
       .original_positions = 4096,
       .may_be_partial = true}};
  return kAll;
}

}  // namespace kvcodec::families
