// Qwen 2 and 2.5: biases on queries, keys and values; windows from some layer on, if they are switched on. Qwen 3:
// norms of heads instead of the biases, and experts in most layers of its mixtures.
#include <algorithm>

#include "formats/models/families/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

constexpr int64_t kQwenSlidingWindow = 4096;
constexpr int64_t kMaxWindowLayers = 28;  // layers below it never have a window
constexpr int kQwen3HeadDim = 128;
constexpr int64_t kQwenExperts = 128, kQwenChosen = 8, kExpertWidth = 768;

void read_windows(Reading& reading) {
  const JsonFields& fields = reading.fields;
  int64_t window = window_of(fields, kQwenSlidingWindow);
  if (!fields.get_bool("use_sliding_window").value_or(false)) window = 0;
  const int64_t first = fields.get_int("max_window_layers").value_or(kMaxWindowLayers);
  const auto slides = [&](int layer) { return window > 0 && layer >= first; };
  set_windows(reading.config, sliding_layers(reading, slides), window);
}

void describe_qwen2(Reading& reading) {
  reading.config.qkv_bias = true;
  read_windows(reading);
}

void describe_qwen3(Reading& reading) {
  reading.config.qk_norm = QkNorm::heads;
  read_windows(reading);
}

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
  config.qk_norm = QkNorm::heads;
  Mixture& mixture = config.mixture;
  const char* const field = fields.find("num_experts") ? "num_experts" : "num_local_experts";
  mixture.experts = as_int(field, fields.get_int(field).value_or(kQwenExperts));
  if (mixture.experts < 1) throw bad_input("{} is {}; it must be positive", field, mixture.experts);
  mixture.chosen = as_int("num_experts_per_tok", fields.get_int("num_experts_per_tok").value_or(kQwenChosen));
  mixture.width =
      as_int("moe_intermediate_size", fields.get_int("moe_intermediate_size").value_or(kExpertWidth));
  mixture.normalised = fields.get_bool("norm_topk_prob").value_or(false);
  mixture.layers = expert_layers(reading);
  TensorNames& names = config.names;
  names.router = "mlp.gate", names.experts = "mlp.experts";
  names.expert_gate = "gate_proj", names.expert_up = "up_proj", names.expert_down = "down_proj";
  const bool use_window = fields.get_bool("use_sliding_window").value_or(false);
  const int64_t window = use_window ? window_of(fields, kQwenSlidingWindow) : 0;
  set_windows(config, sliding_layers(reading, [&](int) { return window > 0; }), window);
}

}  // namespace

const Family kQwen2 = {.model_type = "qwen2", .class_prefix = "Qwen2", .describe = describe_qwen2};
const Family kQwen3 = {.model_type = "qwen3",
                       .class_prefix = "Qwen3",
                       .describe = describe_qwen3,
                       .head_dim = kQwen3HeadDim,
                       .may_have_attention_bias = true};

const Family kQwen3Moe = {.model_type = "qwen3_moe",
                          .class_prefix = "Qwen3Moe",
                          .describe = describe_qwen3_moe,
                          .may_have_attention_bias = true};

}  // namespace kvcodec::families
