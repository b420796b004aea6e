// Gemma 2 and Gemma 3. Their norms are stored with the 1 added.
#include <cmath>

#include "formats/models/gguf_families/architecture.hpp"

namespace kvcodec::gguf {
namespace {

constexpr int kGemma2Window = 4096;
constexpr double kScoreCap = 50, kLogitCap = 30;  // of Gemma 2
constexpr int kGemma2Layers27b = 46, kGemma3Layers27b = 62;
constexpr double kLocalTheta = 10000;

/// No key says what divides scores. It is the root of a head's length but in the largest models, which are told by their
/// layers: there that of the hidden size for each head.
double attention_scale(const ModelConfig& config, int layers_27b) {
  const int divisor =
      config.num_layers == layers_27b ? config.hidden_size / config.num_q_heads : config.head_dim;
  return 1 / std::sqrt(static_cast<double>(divisor));
}

void describe_both(Reading& reading, int layers_27b) {
  ModelConfig& config = reading.config;
  config.activation = Activation::gelu_tanh;
  config.names.attention_out_norm = "post_attention_norm";
  config.names.mlp_out_norm = "post_ffw_norm";
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.attention_scale = attention_scale(config, layers_27b);
}

void describe_gemma2(Reading& reading) {
  ModelConfig& config = reading.config;
  describe_both(reading, kGemma2Layers27b);
  config.attention_softcap = reading.fields.number_or("attn_logit_softcapping", kScoreCap);
  config.logit_softcap = reading.fields.number_or("final_logit_softcapping", kLogitCap);
  reading.fields.must_be("rope.freq_base_swa", config.rope.theta);
  set_windows(config, sliding_layers(reading, 2),
              reading.fields.size_or("attention.sliding_window", kGemma2Window));
}

void describe_gemma3(Reading& reading) {
  ModelConfig& config = reading.config;
  describe_both(reading, kGemma3Layers27b);
  config.qk_norm = QkNorm::heads;
  config.logit_softcap = reading.fields.number_or("final_logit_softcapping", 0);
  const int window = reading.fields.size_or("attention.sliding_window", 0);
  if (window == 0) return set_window(reading, 0);
  const std::vector<bool> slides = sliding_layers(reading, 6);
  set_windows(config, slides, window);
  // What is said of scaling concerns the layers without a window.
  config.local_rope.theta = reading.fields.number_or("rope.freq_base_swa", kLocalTheta);
  for (const bool layer_slides : slides)
    config.layer_rope.push_back(layer_slides ? LayerRope::local : LayerRope::usual);
}

}  // namespace

const Architecture kGemma2 = {.name = "gemma2", .family = "gemma2", .describe = describe_gemma2};
const Architecture kGemma3 = {.name = "gemma3", .family = "gemma3_text", .describe = describe_gemma3};

}  // namespace kvcodec::gguf
