// Families of models: how config.json and the keys of GGUF files become a ModelConfig. Most of a configuration is read in the same
// way for all families; a family's file in families/ has the rest: parts, names of tensors, multipliers, which layers have a window
// …
//
// A file families/NAME.cpp defines the function `std::span<const Family> NAME()`; the build finds it by the file's name
// (cmake/lists.cmake). How to add one: CONTRIBUTING.md, "A family of models". Where to look:
//
// - config.json: defaults are those of transformers' configuration_NAME.py; modeling_NAME.py has the parts and their names
//   (ModelConfig::names, lib/model/config.hpp). A test model with `old=NAME` has a config.json of earlier transformers.
// - GGUF: llama.cpp's conversion/ has the keys and tensors of a file, src/models/NAME.cpp the computation; pairs_neighbours is set
//   if llama_model_rope_type() says NORM. If no key gives a value, choose that of published models, and document the choice in
//   man/kvcodec-dump-kv.1, "What no key says".
// - Tokenizers: test models have none, so run dump-kv --text on a published model; split_as() in gguf_tokenizer.cpp must
//   know the family's tokenizer.ggml.pre.
// - A part that no family had goes to lib/model/config.hpp (with its range in check()), to the forward pass (cpu_steps.cpp), the
//   loading of tensors (llama_weights.cpp), beyond_llama() so that devices decline it, cache_gradients.cpp or beyond_gradients(),
//   and, if it turns keys, rope.hpp.
#pragma once

#include <functional>

#include "formats/io/json_file.hpp"
#include "formats/models/gguf.hpp"
#include "formats/models/model_config.hpp"

namespace kvcodec::gguf {

/// Keys of the architecture: "llama.block_count" …
class Fields {
 public:
  Fields(const Gguf& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + '.') {}

  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  bool has(std::string_view name) const { return file_.has(key(name)); }
  int need_size(std::string_view name) const;
  int size_or(std::string_view name, int otherwise) const;
  /// A size that may be given per layer; it must be the same for all layers, 0 aside.
  int need_size_of_layers(std::string_view name) const;
  std::optional<double> get_number(std::string_view name) const { return file_.get_number(key(name)); }
  double number_or(std::string_view name, double otherwise) const {
    return get_number(name).value_or(otherwise);
  }
  double need_number(std::string_view name) const { return file_.need_number(key(name)); }
  std::optional<bool> get_flag(std::string_view name) const { return file_.get_bool(key(name)); }
  std::optional<std::string> get_string(std::string_view name) const { return file_.get_string(key(name)); }
  /// Throws if the key is present with another value: only this one is supported.
  void must_be(std::string_view name, double value) const;

  bool has_tensor(std::string_view name) const { return file_.tensors().contains(name); }
  const Gguf& file() const { return file_; }

 private:
  int as_size(std::string_view name, int64_t value) const;

  const Gguf& file_;
  std::string prefix_;
};

/// A file's keys, and the configuration that is read from them.
struct Reading {
  const Fields& fields;
  ModelConfig& config;
  std::vector<std::string>& notes;  ///< as of ModelDescription
};

/// Sets the same window in all layers, `otherwise` if no key gives it; 0 = none.
void set_window(Reading& reading, int otherwise);

/// For each layer, whether it has a window according to attention.sliding_window_pattern: a flag per layer, or a period whose last
/// layer has none. Without the key, `period` is used.
std::vector<bool> sliding_layers(const Reading& reading, int period);

/// Sets a window in those layers.
void set_windows(Reading& reading, const std::vector<bool>& slides, int window);
void set_no_window(Reading& reading);

}  // namespace kvcodec::gguf

namespace kvcodec::families {

/// A config.json, and the configuration that is read from it.
struct Reading {
  const JsonFields& fields;
  ModelDescription& description;
  ModelConfig& config;
  const nlohmann::json* rope = nullptr;  ///< the object with the scaling of config.rope, if there is one
};

/// The part of a family that only concerns GGUF files.
struct GgufForm {
  std::string_view architecture = {};  ///< general.architecture; empty: such files are not read
  /// Sets the family's own settings, after everything else is read. Without config.window, attention.sliding_window holds for all layers.
  void (*describe)(gguf::Reading& reading) = nullptr;
  /// The rotary embedding turns dimensions 2j and 2j + 1 together; the rows of q and k are stored in that order.
  bool pairs_neighbours = false;
  bool may_have_experts = false;
};

/// A family of models. The members hold the family's names, and its defaults (those of transformers) for settings of all families.
struct Family {
  std::string_view model_type;
  std::string_view class_prefix;  ///< of names in "architectures"
  /// Sets the properties of all models of the family, for any file format, after sizes, heads, biases and the rotary embedding are
  /// read.
  void (*parts)(ModelConfig& config) = nullptr;
  /// Sets the family's settings from config.json, after `parts`. Without config.window, no layer has a window.
  void (*describe)(Reading& reading) = nullptr;
  /// Before all that: puts what config.json says under other names under those that most families have.
  void (*rename)(nlohmann::json& config) = nullptr;
  GgufForm gguf = {};
  bool pairs_neighbours = false;  ///< as of GgufForm, where the weights of the model itself are so

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

/// All families, by the names of their files.
const std::vector<Family>& all_families();

/// "a, b and c".
std::string listed(std::vector<std::string_view> names);

// Parts of a configuration that several families have ---------------------------------------------

/// Refuses a model whose tokens attend to later tokens; field and value show that it does.
[[noreturn]] void refuse_bidirectional(std::string_view field, std::string_view value);

/// Gives the field `usual` the value of `own`, if that is there.
void rename_field(nlohmann::json& config, const char* own, const char* usual);

/// An integer that must fit int; its range is checked with the whole configuration.
int as_int(const char* name, int64_t value);

/// The integer in a field, as as_int(); `otherwise` if it is absent.
int int_of(const JsonFields& fields, const char* name, int64_t otherwise);

/// The field sliding_window; `otherwise` if it is absent; 0 if it is null. Throws if it is not positive.
int64_t window_of(const JsonFields& fields, int64_t otherwise);

/// Gives the sliding layers this window, and the others none. The sliding layers are those in layer_types or, if there is no such
/// list, those for which slides(layer) is true, or all. Returns them. Throws if a layer slides and the window is 0.
std::vector<bool> set_windows(Reading& reading, int64_t window,
                              const std::function<bool(int layer)>& slides = nullptr);

/// Gives all layers this window; 0: none. It is for families whose code does not follow layer_types: throws if that list differs.
void set_one_window(Reading& reading, int64_t window);

/// For each layer whether layer_types says `type` and not 'full_attention'; empty without layer_types.
std::vector<bool> layers_of_type(const Reading& reading, std::string_view type);

/// For each layer whether that field lists it; nothing if it is absent.
std::optional<std::vector<bool>> layers_listed(const Reading& reading, const char* name);

/// The layers that config.delta has turn nothing, and no layer has a window.
void set_delta_layers(ModelConfig& config);

/// For each layer whether it has experts: layers in mlp_only_layers, and all but every decoder_sparse_step-th layer, have an MLP.
std::vector<bool> sparse_layers(const Reading& reading);

/// Gives all layers num_local_experts experts as wide as the MLP, and num_experts_per_tok; experts, chosen: used without these fields.
void read_local_experts(Reading& reading, int64_t experts, int64_t chosen);

/// A rotary embedding: its base and scaling from `object` (rope_scaling, rope_parameters or one of its members; may be nullptr),
/// with `theta` as base if the object has none, and `original_positions` (0: max_position_embeddings) as the context length of the
/// first training. config: the whole configuration, which may contain some of these values instead.
Rope rope_of(const JsonFields& config, const nlohmann::json* object, double theta,
             double original_positions = 0);

}  // namespace kvcodec::families
