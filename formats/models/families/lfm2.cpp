// LFM2: most layers mix tokens by a short gated convolution, and keep no keys and values; the others have attention with norms of
// queries and keys.

#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

void set_lfm2_parts(ModelConfig& config) { config.qk_norm = QkNorm::heads; }

void rename_lfm2(nlohmann::json& config) {
  rename_field(config, "block_ff_dim", "intermediate_size");
  rename_field(config, "tie_embedding", "tie_word_embeddings");
}

/// One head with the model's width; layers and kernel are set.
void set_convolution(ModelConfig& config) {
  DeltaLayers& delta = config.delta;
  delta.key_heads = delta.value_heads = 1;
  delta.value_dim = config.hidden_size;
  set_delta_layers(config);
}

/// The width of the MLP: two thirds of the one that config.json says, times a factor, up to the next multiple.
int adjusted_width(const JsonFields& fields, int said) {
  if (!fields.get_bool("block_auto_adjust_ff_dim").value_or(true)) return said;
  const int64_t two_thirds = int64_t{2} * said / 3, multiple = int_of(fields, "block_multiple_of", 256);
  if (fields.has_null("block_ffn_dim_multiplier")) return as_int("intermediate_size", two_thirds);
  if (multiple < 1) throw bad_input("block_multiple_of is {}; it must be positive", multiple);
  const double factor = fields.get_number("block_ffn_dim_multiplier").value_or(1);
  if (!(factor > 0 && factor < 1 << 10))
    throw bad_input("block_ffn_dim_multiplier is {}; it must be in 0..{}", factor, 1 << 10);
  const auto width = static_cast<int64_t>(factor * static_cast<double>(two_thirds));
  return as_int("intermediate_size", (width + multiple - 1) / multiple * multiple);
}

void describe_lfm2(Reading& reading) {
  const JsonFields& fields = reading.fields;
  ModelConfig& config = reading.config;
  config.intermediate_size = adjusted_width(fields, config.intermediate_size);
  DeltaLayers& delta = config.delta;
  delta.layers = layers_of_type(reading, "conv");
  if (delta.layers.empty()) {
    delta.layers.resize(static_cast<size_t>(config.num_layers));
    if (const auto attention = layers_listed(reading, "full_attn_idxs"))
      for (size_t i = 0; i < attention->size(); ++i) delta.layers[i] = !(*attention)[i];
  }
  delta.kernel = int_of(fields, "conv_L_cache", 3);
  delta.biases = fields.get_bool("conv_bias").value_or(false);
  set_convolution(config);
  TensorNames& names = config.names;
  names.final_norm = "embedding_norm";
  names.attention_norm = "operator_norm", names.mlp_norm = "ffn_norm";
  names.output = "self_attn.out_proj";
  names.query_norm = "self_attn.q_layernorm", names.key_norm = "self_attn.k_layernorm";
  names.gate = "feed_forward.w1", names.up = "feed_forward.w3", names.down = "feed_forward.w2";
  names.delta = "conv.";
  names.of_delta = {.mixed = "in_proj", .kernel = "conv", .output = "out_proj"};
}

void describe_lfm2(gguf::Reading& reading) {
  const gguf::Fields& fields = reading.fields;
  ModelConfig& config = reading.config;
  fields.must_be("attention.sliding_window", 0);
  config.delta.kernel = fields.need_size("shortconv.l_cache");
  for (int layer = 0; layer < config.num_layers; ++layer)
    config.delta.layers.push_back(fields.has_tensor(fmt::format("blk.{}.shortconv.conv.weight", layer)));
  set_convolution(config);
  // The norm behind all layers; not all files name it as other models' files do.
  if (fields.has_tensor("token_embd_norm.weight")) config.names.final_norm = "token_embd_norm";
  config.names.of_delta = {.mixed = "shortconv.in_proj",
                           .kernel = "shortconv.conv",
                           .output = "shortconv.out_proj",
                           .flat_kernel = true};
}

}  // namespace

std::span<const Family> lfm2() {
  static constexpr Family kAll[] = {{.model_type = "lfm2",
                                     .class_prefix = "Lfm2",
                                     .parts = set_lfm2_parts,
                                     .describe = describe_lfm2,
                                     .rename = rename_lfm2,
                                     .gguf = {.architecture = "lfm2", .describe = describe_lfm2},
                                     .norm_epsilon_field = "norm_eps",
                                     .norm_epsilon = 1e-5,
                                     .tied_embeddings = true,
                                     .rope_theta = 1000000}};
  return kAll;
}

}  // namespace kvcodec::families
