// SmolLM 3: Llama without a rotary embedding in some layers, every fourth if nothing is said.
#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

constexpr int64_t kInterval = 4;

/// no_rope_layers says 1 for the layers that do have one.
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
  set_windows(config,
              sliding_layers(
                  reading, [&](int layer) { return window > 0 && config.rope_of(layer) == LayerRope::none; }),
              window);
}

/// No key says which layers turn nothing: every fourth.
void describe_smollm3(gguf::Reading& reading) {
  for (int layer = 0; layer < reading.config.num_layers; ++layer)
    reading.config.layer_rope.push_back((layer + 1) % kInterval == 0 ? LayerRope::none : LayerRope::usual);
  set_no_window(reading);
}

}  // namespace

std::span<const Family> smollm3() {
  static constexpr Family kAll[] = {
      {.model_type = "smollm3",
       .class_prefix = "SmolLM3",
       .describe = describe_smollm3,
       .gguf = {.architecture = "smollm3", .describe = describe_smollm3, .pairs_neighbours = true},
       .tied_embeddings = true,
       .rope_theta = 2000000,
       .may_have_attention_bias = true,
       .may_have_mlp_bias = true}};
  return kAll;
}

}  // namespace kvcodec::families
