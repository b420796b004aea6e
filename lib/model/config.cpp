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
constexpr int kMaxExperts = 1 << 16;
constexpr int kMaxConvolution = 1 << 10;

void check_size(std::string_view name, int value, int max) {
  if (value < 1 || value > max) throw bad_input("{} is {}; it must be in 1..{}", name, value, max);
}

void check_positive(std::string_view name, double value) {
  if (!(value > 0)) throw bad_input("{} is {}; it must be positive", name, value);
  // Everything is computed in float.
  if (value > std::numeric_limits<float>::max()) throw bad_input("{} is {}; it is beyond float", name, value);
}

void check_divisors(const std::vector<float>& divisors, int dims) {
  if (divisors.size() != static_cast<size_t>(dims) / 2)
    throw bad_input("{} frequencies have a divisor; heads of which {} dimensions are turned have {}",
                    divisors.size(), dims, dims / 2);
  for (const float divisor : divisors) check_positive("the divisor of a frequency", divisor);
}

void check_llama3(const RopeScaling& scaling) {
  check_positive("low_freq_factor", scaling.low_frequency_factor);
  if (!(scaling.high_frequency_factor > scaling.low_frequency_factor) ||
      !std::isfinite(scaling.high_frequency_factor))
    throw bad_input("high_freq_factor is {}; it must be greater than low_freq_factor ({})",
                    scaling.high_frequency_factor, scaling.low_frequency_factor);
}

void check_yarn(const RopeScaling& scaling, double theta) {
  check_positive("beta_fast", scaling.fast_turns);
  check_positive("beta_slow", scaling.slow_turns);
  if (theta == 1) throw bad_input("rope_theta is 1; rope scaling of type 'yarn' needs another");
}

void check_rope(const Rope& rope, int head_dim) {
  check_positive("rope_theta", rope.theta);
  const int dims = turned_dims(rope, head_dim);
  if (dims < 2 || dims > head_dim || dims % 2 != 0)
    throw bad_input(
        "the rotary embedding turns {} dimensions of a head of {}; it must be an even number in 2..{}", dims,
        head_dim, head_dim);
  if (rope.first < 0 || rope.first > head_dim - dims)
    throw bad_input("the rotary embedding turns {} dimensions of a head of {} from {} on", dims, head_dim,
                    rope.first);
  using Kind = RopeScaling::Kind;
  const RopeScaling& scaling = rope.scaling;
  if (scaling.kind == Kind::none) return;
  if (scaling.kind == Kind::divided) return check_divisors(scaling.divisors, dims);
  check_positive("rope scaling factor", scaling.factor);
  if (scaling.kind == Kind::proportional) {
    check_positive("partial_rotary_factor", scaling.share);
    if (scaling.share > 1) throw bad_input("partial_rotary_factor is {}; it is at most 1", scaling.share);
    return;
  }
  if (scaling.kind == Kind::linear) return;
  check_positive("original_max_position_embeddings", scaling.original_positions);
  if (scaling.kind == Kind::llama3) return check_llama3(scaling);
  check_positive("attention_factor", scaling.attention_factor);
  if (scaling.kind == Kind::yarn) return check_yarn(scaling, rope.theta);
  check_divisors(scaling.divisors, dims);
  check_divisors(scaling.long_divisors, dims);
}

void check_mixture(const ModelConfig& config) {
  const Mixture& mixture = config.mixture;
  if (mixture.experts == 0) return;
  check_size("num_local_experts", mixture.experts, kMaxExperts);
  check_size("num_experts_per_tok", mixture.chosen, mixture.experts);
  check_size("moe_intermediate_size", mixture.width, kMaxWidth);
  if (mixture.shared_width != 0)
    check_size("moe_intermediate_size of all shared experts", mixture.shared_width, kMaxWidth);
  check_size("n_group", mixture.groups, mixture.experts);
  check_size("topk_group", mixture.chosen_groups, mixture.groups);
  if (mixture.experts % mixture.groups != 0)
    throw bad_input("n_group is {}; it must divide the {} experts", mixture.groups, mixture.experts);
  const int size = mixture.experts / mixture.groups;
  if (mixture.group_best > size && mixture.groups > 1)
    throw bad_input("groups of {} experts; they must have at least {}", size, mixture.group_best);
  if (mixture.chosen > mixture.chosen_groups * size)
    throw bad_input("num_experts_per_tok is {}; {} groups have {}", mixture.chosen, mixture.chosen_groups,
                    mixture.chosen_groups * size);
  check_positive("routed_scaling_factor", mixture.scale);
  if (mixture.layers.size() != static_cast<size_t>(config.num_layers))
    throw failed("{} layers are said to have experts or none; there are {} layers", mixture.layers.size(),
                 config.num_layers);
}

void check_latent(const ModelConfig& config) {
  const LatentAttention& latent = config.latent;
  if (!config.is_latent()) return;
  check_size("kv_lora_rank", latent.rank, kMaxHeadDim);
  if (latent.query_rank != 0) check_size("q_lora_rank", latent.query_rank, kMaxWidth);
  check_size("qk_nope_head_dim", latent.plain_dim, kMaxHeadDim);
  check_size("qk_rope_head_dim", latent.turned_dim, kMaxHeadDim);
  check_size("v_head_dim", latent.value_dim, kMaxHeadDim);
  if (config.num_kv_heads != 1 || config.head_dim != latent.rank + latent.turned_dim ||
      config.rope.first != latent.rank || config.rope.dims != latent.turned_dim)
    throw failed("the one key of latent attention has {} + {} dimensions", latent.rank, latent.turned_dim);
  if (config.qk_norm != QkNorm::none || !config.names.sinks.empty())
    throw failed("latent attention with norms of heads or sinks");
}

void check_delta(const ModelConfig& config) {
  const DeltaLayers& delta = config.delta;
  if (delta.layers.empty()) return;
  if (std::ranges::find(delta.layers, false) == delta.layers.end())
    throw bad_input("no layer has attention; a model without a cache of keys and values is not supported");
  if (delta.only_convolve()) {
    check_size("conv_L_cache", delta.kernel, kMaxConvolution);
    if (delta.key_heads != 1 || delta.value_heads != 1 || delta.value_dim != config.hidden_size)
      throw failed("a convolution of {} channels in a model of {}", delta.value_dim, config.hidden_size);
    return;
  }
  check_size("linear_num_key_heads", delta.key_heads, kMaxHeads);
  check_size("linear_num_value_heads", delta.value_heads, kMaxHeads);
  check_size("linear_key_head_dim", delta.key_dim, kMaxHeadDim);
  check_size("linear_value_head_dim", delta.value_dim, kMaxHeadDim);
  check_size("linear_conv_kernel_dim", delta.kernel, kMaxConvolution);
  if (delta.value_heads % delta.key_heads != 0)
    throw bad_input("linear_num_value_heads is {}; it must be a multiple of linear_num_key_heads ({})",
                    delta.value_heads, delta.key_heads);
}

void check_heads(const ModelConfig& config, int kv_heads, int head_dim) {
  check_size("num_key_value_heads", kv_heads, kMaxHeads);
  check_size("head_dim", head_dim, kMaxHeadDim);
  if (config.num_q_heads % kv_heads != 0)
    throw bad_input("num_attention_heads is {}; it must be a multiple of num_key_value_heads ({})",
                    config.num_q_heads, kv_heads);
  if (head_dim % 2 != 0)
    throw bad_input("head_dim is {}; rotary embeddings turn pairs, so it must be even", head_dim);
}

/// Checks what layers have for themselves, and what they take from others.
void check_layers(const ModelConfig& config) {
  if (config.local_head_dim != 0) check_heads(config, config.local_kv_heads, config.local_head_dim);
  if (config.shared_intermediate_size != 0)
    check_size("intermediate_size of shared layers", config.shared_intermediate_size, kMaxWidth);
  if (config.shared_layers < 0 || config.shared_layers >= config.num_layers)
    throw bad_input("num_kv_shared_layers is {}; it must be in 0..{}", config.shared_layers,
                    config.num_layers - 1);
  for (int layer = 0; layer < config.num_layers; ++layer)
    if (config.source_of(layer) < 0)
      throw bad_input("num_kv_shared_layers is {}; no layer before them is of the kind of layer {}",
                      config.shared_layers, layer);
  if (config.token_inputs.width == 0) return;
  check_size("hidden_size_per_layer_input", config.token_inputs.width, kMaxWidth);
  check_size("vocab_size_per_layer_input", config.token_inputs.vocabulary, kMaxVocabulary);
  if (config.token_inputs.vocabulary < config.vocabulary_size)
    throw bad_input("vocab_size_per_layer_input is {}; it must be at least vocab_size ({})",
                    config.token_inputs.vocabulary, config.vocabulary_size);
}

void check_scales(const ModelConfig& config) {
  check_positive("the scale of embeddings", config.embedding_scale);
  check_positive("the scale of residuals", config.residual_scale);
  check_positive("the scale of logits", config.logit_scale);
  if (config.attention_scale != 0) check_positive("the scale of scores", config.attention_scale);
  if (config.attention_softcap != 0) check_positive("attn_logit_softcapping", config.attention_softcap);
  if (config.logit_softcap != 0) check_positive("final_logit_softcapping", config.logit_softcap);
}

}  // namespace

void check_ropes(const ModelConfig& config) {
  check_rope(config.rope, config.head_dim);
  check_rope(config.local_rope, config.head_dim_of(LayerRope::local));
  if (!config.layer_rope.empty() && config.layer_rope.size() != static_cast<size_t>(config.num_layers))
    throw failed("{} layers have a rotary embedding or none; there are {} layers", config.layer_rope.size(),
                 config.num_layers);
}

void check(const ModelConfig& config) {
  check_size("num_hidden_layers", config.num_layers, kMaxLayers);
  check_size("hidden_size", config.hidden_size, kMaxWidth);
  check_size("intermediate_size", config.intermediate_size, kMaxWidth);
  check_size("num_attention_heads", config.num_q_heads, kMaxHeads);
  check_size("vocab_size", config.vocabulary_size, kMaxVocabulary);
  if (config.max_positions < 0)
    throw bad_input("max_position_embeddings is {}; it must not be negative", config.max_positions);
  if (!config.names.positions.empty()) check_size("max_position_embeddings", config.max_positions, kMaxWidth);
  check_heads(config, config.num_kv_heads, config.head_dim);
  if (!(config.norm_epsilon >= 0) || !std::isfinite(config.norm_epsilon))
    throw bad_input("rms_norm_eps is {}; it must be 0 or positive", config.norm_epsilon);
  check_ropes(config);
  check_layers(config);
  check_scales(config);
  check_latent(config);
  check_delta(config);
  check_mixture(config);
  // Otherwise the MLP would read the hidden states in place, while attention is added to them.
  if (config.parallel_residual && config.names.mlp_norm.empty())
    throw failed("a model with attention and MLP side by side has no norm before its MLP");
  if (config.window.size() != static_cast<size_t>(config.num_layers))
    throw bad_input("{} layers have a window size; there are {} layers", config.window.size(),
                    config.num_layers);
  for (const int64_t window : config.window)
    if (window < 0) throw bad_input("sliding_window is {}; it must be positive or null", window);
}

ModelConfig ModelConfig::of_layer(int layer) const {
  ModelConfig own = *this;
  if (rope_of(layer) == LayerRope::local && local_head_dim > 0)
    own.num_kv_heads = local_kv_heads, own.head_dim = local_head_dim;
  if (source_of(layer) != layer) own.intermediate_size = mlp_width();
  own.local_kv_heads = own.local_head_dim = own.shared_intermediate_size = 0;
  return own;
}

std::string beyond_llama(const ModelConfig& config) {
  const TensorNames& names = config.names;
  using Kind = RopeScaling::Kind;
  const Kind scaling = config.rope.scaling.kind;
  const std::pair<bool, const char*> parts[] = {
      {config.is_latent(), "latent attention"},
      {!config.delta.layers.empty(), "layers without attention"},
      {config.output_gate, "gated attention"},
      {config.local_head_dim > 0 || config.shared_layers > 0, "layers that differ or share keys and values"},
      {config.value_norm || config.keys_make_values, "values with norms, or made as keys"},
      {config.token_inputs.width > 0 || !names.layer_scale.empty(), "inputs or scales of each layer"},
      {std::ranges::any_of(config.layer_rope, [](LayerRope rope) { return rope != LayerRope::usual; }),
       "rotary embeddings that differ by layer"},
      {turned_dims(config.rope, config.head_dim) != config.head_dim, "heads that are turned in part"},
      {scaling == Kind::yarn || scaling == Kind::longrope || scaling == Kind::proportional,
       "rope scaling by yarn or longrope, or in part"},
      {config.norm != NormKind::rms, "layer norms with a mean"},
      {config.qk_norm == QkNorm::whole, "norms of whole queries and keys"},
      {names.attention_norm.empty() || names.mlp_norm.empty() || !names.attention_out_norm.empty() ||
           !names.mlp_out_norm.empty(),
       "norms behind attention and MLP"},
      {!config.gated_mlp || config.activation != Activation::silu, "an MLP that is not gated by silu"},
      {config.mixture.experts > 0, "a mixture of experts"},
      {config.parallel_residual, "attention and MLP side by side"},
      {config.embedding_scale != 1 || config.attention_scale != 0 || config.residual_scale != 1 ||
           config.logit_scale != 1,
       "scales of embeddings, scores, residuals or logits"},
      {config.head_bias, "a bias of logits"},
      {!names.positions.empty(), "learned positions"},
      {!names.sinks.empty(), "attention sinks"},
      {config.attention_softcap != 0 || config.logit_softcap != 0, "soft caps"}};
  for (const auto& [there, part] : parts)
    if (there) return part;
  return "";
}

}  // namespace kvcodec
