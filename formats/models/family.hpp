// Families of models: how config.json and the keys of GGUF files become a ModelConfig. Most of a configuration is read
// the same for all; what a family has beside that, its file in families/ says: parts, names of tensors, multipliers,
// which layers have a window …
//
// A file families/NAME.cpp defines the function `std::span<const Family> NAME()`; the build finds it by the file's name
// (cmake/lists.cmake). How to add one: CONTRIBUTING.md, "A family of models". Where to look:
//
// - config.json: defaults are those of transformers' configuration_NAME.py; modeling_NAME.py has the parts and their names
//   (ModelConfig::names, lib/model/tensor_names.hpp). A test model with `old=NAME` has a config.json of earlier transformers.
// - GGUF: llama.cpp's conversion/ has the keys and tensors of a file, src/models/NAME.cpp the computation; pairs_neighbours is
//   set where llama_model_rope_type() says NORM. Choose what published models have where no key says it, and document the
//   choice in man/kvcodec-dump-kv.1, "What no key says".
// - Tokenizers: test models have none, so run dump-kv --text on a published model; split_as() in gguf_tokenizer.cpp must
//   know the family's tokenizer.ggml.pre.
// - A part that no family had goes to lib/model/config.hpp (with its range in check()), to the forward pass
//   (cpu_steps.cpp), the loading of tensors (llama_weights.cpp), beyond_llama() so that devices decline it,
//   cache_gradients.cpp or beyond_gradients(), and, if it turns keys, rope_description.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/io/json_file.hpp"
#include "formats/models/gguf_fields.hpp"
#include "formats/models/model_config.hpp"

namespace kvcodec::families {

/// A config.json, and what comes of it.
struct Reading {
  const JsonFields& fields;
  ModelDescription& description;
  ModelConfig& config;
  const nlohmann::json* rope = nullptr;  ///< what says the scaling of config.rope; nullptr: nothing does
};

/// The part of a family that concerns GGUF files alone.
struct GgufForm {
  std::string_view architecture;  ///< general.architecture; empty: such files are not read
  /// Sets what differs, once all else is read. Without config.window, attention.sliding_window is that of all layers.
  void (*describe)(gguf::Reading& reading) = nullptr;
  /// The rotary embedding turns dimensions 2j and 2j + 1 together; rows of q and k are stored for that.
  bool pairs_neighbours = false;
  bool may_have_experts = false;
};

/// A family of models. Members hold the family's names and defaults (transformers') of what all families have.
struct Family {
  std::string_view model_type;
  std::string_view class_prefix;  ///< of names in "architectures"
  /// Sets what all models of the family have, whatever file they are read from, once sizes, heads, biases and the rotary
  /// embedding are read.
  void (*parts)(ModelConfig& config) = nullptr;
  /// Sets what config.json says beside, after `parts`. Without config.window, no layer has a window.
  void (*describe)(Reading& reading) = nullptr;
  GgufForm gguf = {};

  const char* norm_epsilon_field = "rms_norm_eps";
  double norm_epsilon = 1e-6;
  const char* activation_field = "hidden_act";
  Activation activation = Activation::silu;
  bool tied_embeddings = false;
  int head_dim = 0;  ///< 0: hidden_size / num_attention_heads
  const char* rope_theta_field = "rope_theta";
  double rope_theta = 10000;
  double original_positions = 0;    ///< of rope scaling; 0: max_position_embeddings
  bool rope_by_layer_type = false;  ///< `describe` reads the rotary embedding from Reading::rope
  const char* partial_rotary_field = "partial_rotary_factor";
  bool may_be_partial = false;  ///< heads may be turned in part
  double partial_rotary = 1;
  bool may_have_attention_bias = false, may_have_mlp_bias = false;
  bool attention_bias = false;
};

/// By the names of their files.
const std::vector<Family>& all_families();

/// "a, b and c".
std::string listed(std::vector<std::string_view> names);

// Parts of a configuration that several families have ---------------------------------------------

/// Refuses a model whose tokens see those behind them: a field that says so, and what it says.
[[noreturn]] void refuse_bidirectional(std::string_view field, bool value);

/// An integer that must fit int; its range is checked with the whole configuration.
int as_int(const char* name, int64_t value);

/// The same of a field, `otherwise` where nothing is said.
int int_of(const JsonFields& fields, const char* name, int64_t otherwise);

/// sliding_window, `otherwise` where nothing is said; 0 where it is null. Throws for one that is not positive.
int64_t window_of(const JsonFields& fields, int64_t otherwise);

/// layer_types, "sliding_attention" or "full_attention" for each layer; empty if there is none.
std::vector<std::string> layer_types_of(const JsonFields& fields, int num_layers);

/// Gives the layers that slide the window, the others none. Throws if one slides and the window is 0.
void set_windows(ModelConfig& config, const std::vector<bool>& slides, int64_t window);

/// Gives all layers that window; 0: none. For families whose code does not follow layer_types: throws if that list says
/// otherwise.
void set_one_window(Reading& reading, int64_t window);

/// Which layers slide: those that layer_types says, or, if there is no such list, slides(layer).
template <class Rule>
std::vector<bool> sliding_layers(const Reading& reading, const Rule& slides) {
  const std::vector<std::string> types = layer_types_of(reading.fields, reading.config.num_layers);
  std::vector<bool> layers;
  layers.reserve(static_cast<size_t>(reading.config.num_layers));
  for (int layer = 0; layer < reading.config.num_layers; ++layer)
    layers.push_back(types.empty() ? slides(layer)
                                   : types[static_cast<size_t>(layer)] == "sliding_attention");
  return layers;
}

/// Gives the window to the layers that layer_types says, or to all.
void set_window_by_types(Reading& reading, int64_t window);

/// Experts in all layers, as wide as the MLP would be: num_local_experts and num_experts_per_tok.
void read_local_experts(Reading& reading, int64_t experts, int64_t chosen);

/// A rotary embedding: its base and scaling, from `object` (rope_scaling, rope_parameters or one of its members; may be
/// nullptr), with `theta` as base if it says none, and `original_positions` (0: max_position_embeddings) as the length of the
/// first training. config: the whole configuration, which may say some of it instead.
Rope rope_of(const JsonFields& config, const nlohmann::json* object, double theta,
             double original_positions = 0);

}  // namespace kvcodec::families
