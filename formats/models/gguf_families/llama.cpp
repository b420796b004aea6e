// Llama and what shares its form: Mistral and Mixtral, Qwen 2 and 3 with and without experts, SmolLM 3.
#include <fmt/format.h>

#include "formats/models/gguf_families/architecture.hpp"

namespace kvcodec::gguf {
namespace {

/// Whoever made files of Llama 3.1 before its scaling was known left it out.
void note_lost_scaling(const Reading& reading) {
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

void describe_llama(Reading& reading) {
  note_lost_scaling(reading);
  if (reading.config.mixture.experts > 0) reading.config.family = "mixtral";
  set_window(reading, 0);
}

/// Qwen files that have the key for a window have it from a config.json that switches windows off.
void set_no_window(Reading& reading) {
  reading.config.window.assign(static_cast<size_t>(reading.config.num_layers), 0);
}

void describe_qwen2(Reading& reading) {
  reading.config.qkv_bias = true;
  set_no_window(reading);
}

void describe_qwen3(Reading& reading) {
  reading.config.qk_norm = QkNorm::heads;
  set_no_window(reading);
}

/// No key says which layers turn nothing: every fourth.
void describe_smollm3(Reading& reading) {
  for (int layer = 0; layer < reading.config.num_layers; ++layer)
    reading.config.layer_rope.push_back((layer + 1) % 4 == 0 ? LayerRope::none : LayerRope::usual);
  set_no_window(reading);
}

}  // namespace

const Architecture kLlama = {.name = "llama",
                             .family = "llama",
                             .describe = describe_llama,
                             .pairs_neighbours = true,
                             .may_have_experts = true};
const Architecture kQwen2 = {.name = "qwen2", .family = "qwen2", .describe = describe_qwen2};
const Architecture kQwen3 = {.name = "qwen3", .family = "qwen3", .describe = describe_qwen3};

const Architecture kQwen3Moe = {
    .name = "qwen3moe", .family = "qwen3_moe", .describe = describe_qwen3, .may_have_experts = true};
const Architecture kSmolLm3 = {
    .name = "smollm3", .family = "smollm3", .describe = describe_smollm3, .pairs_neighbours = true};

}  // namespace kvcodec::gguf
