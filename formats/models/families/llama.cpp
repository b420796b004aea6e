// Llama, and all that says it is one (TinyLlama, SmolLM 1 and 2 …); Mistral: Llama with a window in all layers or none;
// Mixtral: Mistral with experts in all layers. GGUF files of all three have the architecture llama.
#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

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
  set_window_by_types(reading, window_of(reading.fields, 0));
}

/// Whoever made files of Llama 3.1 before its scaling was known left it out.
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
      {.model_type = "mistral", .class_prefix = "Mistral", .describe = describe_mistral},
      {.model_type = "mixtral",
       .class_prefix = "Mixtral",
       .describe = describe_mixtral,
       .norm_epsilon = 1e-5,
       .rope_theta = 1000000}};
  return kAll;
}

}  // namespace kvcodec::families
