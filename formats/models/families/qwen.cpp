// Qwen 2 and 2.5: biases on queries, keys and values; windows from some layer on, if they are switched on. Qwen 3:
// norms of heads instead of the biases, and experts in most layers of its mixtures.
#include <algorithm>

#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

constexpr int64_t kQwenSlidingWindow = 4096;
constexpr int64_t kMaxWindowLayers = 28;  // layers below it never have a window
constexpr int kQwen3HeadDim = 128;
constexpr int64_t kQwenExperts = 128, kQwenChosen = 8, kExpertWidth = 768;

void read_qwen_windows(Reading& reading) {
  const JsonFields& fields = reading.fields;
  int64_t window = window_of(fields, kQwenSlidingWindow);
  if (!fields.get_bool("use_sliding_window").value_or(false)) window = 0;
  const int64_t first = fields.get_int("max_window_layers").value_or(kMaxWindowLayers);
  const auto slides = [&](int layer) { return window > 0 && layer >= first; };
  set_windows(reading.config, sliding_layers(reading, slides), window);
}

void set_qwen2_parts(ModelConfig& config) { config.qkv_bias = true; }
void set_qwen3_parts(ModelConfig& config) { config.qk_norm = QkNorm::heads; }

/// mlp_only_layers, and all but every decoder_sparse_step-th, have an MLP.
std::vector<bool> expert_layers(const Reading& reading) {
  const JsonFields& fields = reading.fields;
  const int64_t step = fields.get_int("decoder_sparse_step").value_or(1);
  if (step < 1) throw bad_input("decoder_sparse_step is {}; it must be positive", step);
  std::vector<bool> layers;
  layers.reserve(static_cast<size_t>(reading.config.num_layers));
  for (int layer = 0; layer < reading.config.num_layers; ++layer) layers.push_back((layer + 1) % step == 0);
  if (const nlohmann::json* list = fields.find("mlp_only_layers")) {
    const auto is_layer = [&](const nlohmann::json& value) {
      return value.is_number_unsigned() && value.get<uint64_t>() < layers.size();
    };
    if (!list->is_array() || !std::all_of(list->begin(), list->end(), is_layer))
      throw bad_input("mlp_only_layers is {}; it must be a list of layers in 0..{}", printable(list->dump()),
                      layers.size() - 1);
    for (const nlohmann::json& layer : *list) layers[layer.get<size_t>()] = false;
  }
  return layers;
}

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
  mixture.layers = expert_layers(reading);
  TensorNames& names = config.names;
  names.router = "mlp.gate", names.experts = "mlp.experts";
  names.expert_gate = "gate_proj", names.expert_up = "up_proj", names.expert_down = "down_proj";
  const bool use_window = fields.get_bool("use_sliding_window").value_or(false);
  set_window_by_types(reading, use_window ? window_of(fields, kQwenSlidingWindow) : 0);
}

}  // namespace

std::span<const Family> qwen() {
  static constexpr Family kAll[] = {
      // GGUF files that have the key for a window have it from a config.json that switches windows off.
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
       .may_have_attention_bias = true}};
  return kAll;
}

}  // namespace kvcodec::families
