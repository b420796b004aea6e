#include "lib/model/config.hpp"

#include <cmath>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

// Caps are far above any model of these families, and low enough that sizes cannot overflow.
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxHeads = 1 << 14;
constexpr int kMaxHeadDim = 1 << 12;
constexpr int kMaxVocabulary = 1 << 24;

void check_size(std::string_view name, int value, int max) {
  if (value < 1 || value > max) throw bad_input("{} is {}; it must be in 1..{}", name, value, max);
}

void check_positive(std::string_view name, double value) {
  if (!(value > 0)) throw bad_input("{} is {}; it must be positive", name, value);
  // Everything is computed in float.
  if (value > std::numeric_limits<float>::max()) throw bad_input("{} is {}; it is beyond float", name, value);
}

void check_scaling(const RopeScaling& scaling, int head_dim) {
  if (scaling.kind == RopeScaling::Kind::none) return;
  if (scaling.kind == RopeScaling::Kind::divided) {
    if (scaling.divisors.size() != static_cast<size_t>(head_dim) / 2)
      throw bad_input("{} frequencies have a divisor; heads of {} dimensions have {}",
                      scaling.divisors.size(), head_dim, head_dim / 2);
    for (const float divisor : scaling.divisors) check_positive("the divisor of a frequency", divisor);
    return;
  }
  check_positive("rope scaling factor", scaling.factor);
  if (scaling.kind == RopeScaling::Kind::linear) return;
  check_positive("low_freq_factor", scaling.low_frequency_factor);
  check_positive("original_max_position_embeddings", scaling.original_positions);
  if (!(scaling.high_frequency_factor > scaling.low_frequency_factor) ||
      !std::isfinite(scaling.high_frequency_factor))
    throw bad_input("high_freq_factor is {}; it must be greater than low_freq_factor ({})",
                    scaling.high_frequency_factor, scaling.low_frequency_factor);
}

}  // namespace

void check(const ModelConfig& config) {
  check_size("num_hidden_layers", config.num_layers, kMaxLayers);
  check_size("hidden_size", config.hidden_size, kMaxWidth);
  check_size("intermediate_size", config.intermediate_size, kMaxWidth);
  check_size("num_attention_heads", config.num_q_heads, kMaxHeads);
  check_size("num_key_value_heads", config.num_kv_heads, kMaxHeads);
  check_size("head_dim", config.head_dim, kMaxHeadDim);
  check_size("vocab_size", config.vocabulary_size, kMaxVocabulary);
  if (config.max_positions < 0)
    throw bad_input("max_position_embeddings is {}; it must not be negative", config.max_positions);
  if (config.num_q_heads % config.num_kv_heads != 0)
    throw bad_input("num_attention_heads is {}; it must be a multiple of num_key_value_heads ({})",
                    config.num_q_heads, config.num_kv_heads);
  if (config.head_dim % 2 != 0)
    throw bad_input("head_dim is {}; rotary embeddings turn pairs, so it must be even", config.head_dim);
  if (!(config.norm_epsilon >= 0) || !std::isfinite(config.norm_epsilon))
    throw bad_input("rms_norm_eps is {}; it must be 0 or positive", config.norm_epsilon);
  check_positive("rope_theta", config.rope_theta);
  check_scaling(config.rope_scaling, config.head_dim);
  if (config.window.size() != static_cast<size_t>(config.num_layers))
    throw bad_input("{} layers have a window size; there are {} layers", config.window.size(),
                    config.num_layers);
  for (const int64_t window : config.window)
    if (window < 0) throw bad_input("sliding_window is {}; it must be positive or null", window);
}

}  // namespace kvcodec
