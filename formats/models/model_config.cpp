#include "formats/models/model_config.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/models/family.hpp"
#include "formats/models/key_rope.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {

/// Families from the sources in families/, whose names the build collects (cmake/lists.cmake).
std::vector<std::span<const Family>> families_of_files();

const std::vector<Family>& all_families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> families;
    for (const auto more : families_of_files()) families.insert(families.end(), more.begin(), more.end());
    return families;
  }();
  return all;
}

std::string listed(std::vector<std::string_view> names) {
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

void refuse_bidirectional(std::string_view field, std::string_view value) {
  throw bad_input("{} is {}; a model that reads what follows has no cache to go on with", field, value);
}

void rename_field(nlohmann::json& config, const char* own, const char* usual) {
  if (const auto place = config.find(own); place != config.end()) config[usual] = nlohmann::json(*place);
}

int as_int(const char* name, int64_t value) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
    throw bad_input("{} is {}; it does not fit 32 bits", name, value);
  return static_cast<int>(value);
}

int int_of(const JsonFields& fields, const char* name, int64_t otherwise) {
  return as_int(name, fields.get_int(name).value_or(otherwise));
}

int64_t window_of(const JsonFields& fields, int64_t otherwise) {
  if (fields.has_null("sliding_window")) return 0;
  const auto window = fields.get_int("sliding_window");
  if (window && *window < 1) throw bad_input("sliding_window is {}; it must be positive or null", *window);
  return window.value_or(otherwise);
}

std::vector<bool> set_windows(Reading& reading, int64_t window, const std::function<bool(int)>& slides) {
  const auto layers = static_cast<size_t>(reading.config.num_layers);
  std::vector<bool> all;
  if (const nlohmann::json* list = reading.fields.find("layer_types")) {
    if (list->is_array() && list->size() == layers)
      for (const auto& type : *list)
        if (type == "full_attention" || type == "sliding_attention")
          all.push_back(type == "sliding_attention");
    if (all.size() != layers)
      throw bad_input("layer_types must list 'full_attention' or 'sliding_attention' for each of {} layers",
                      layers);
  } else {
    for (int layer = 0; layer < reading.config.num_layers; ++layer)
      all.push_back(slides ? slides(layer) : window > 0);
  }
  for (const bool layer_slides : all) {
    if (layer_slides && window == 0)
      throw bad_input("layer_types has 'sliding_attention', but no sliding_window is in use");
    reading.config.window.push_back(layer_slides ? window : 0);
  }
  return all;
}

void set_one_window(Reading& reading, int64_t window) {
  const std::vector<bool> slides = set_windows(reading, window);
  const auto full = std::ranges::find(slides, false);
  if (window > 0 && full != slides.end())
    throw bad_input(
        "layer_types says 'full_attention' for layer {}; a {} model with that sliding_window has the same attention "
        "in all layers",
        full - slides.begin(), reading.config.family);
}

std::vector<bool> layers_of_type(const Reading& reading, std::string_view type) {
  const auto count = static_cast<size_t>(reading.config.num_layers);
  const nlohmann::json* types = reading.fields.find("layer_types");
  std::vector<bool> layers;
  if (!types) return layers;
  if (types->is_array() && types->size() == count)
    for (const nlohmann::json& own : *types)
      if (own == type || own == "full_attention") layers.push_back(own == type);
  if (layers.size() != count)
    throw bad_input("layer_types must say '{}' or 'full_attention' for each of {} layers", type, count);
  return layers;
}

std::optional<std::vector<bool>> layers_listed(const Reading& reading, const char* name) {
  const nlohmann::json* list = reading.fields.find(name);
  if (!list) return std::nullopt;
  std::vector<bool> layers(static_cast<size_t>(reading.config.num_layers));
  const auto is_layer = [&](const nlohmann::json& value) {
    return value.is_number_unsigned() && value.get<uint64_t>() < layers.size();
  };
  if (!list->is_array() || !std::ranges::all_of(*list, is_layer))
    throw bad_input("{} is {}; it must be a list of layers in 0..{}", name, printable(list->dump()),
                    layers.size() - 1);
  for (const nlohmann::json& layer : *list) layers[layer.get<size_t>()] = true;
  return layers;
}

void set_delta_layers(ModelConfig& config) {
  for (const bool delta : config.delta.layers)
    config.layer_rope.push_back(delta ? LayerRope::none : LayerRope::usual);
  config.window.assign(config.delta.layers.size(), 0);
}

std::vector<bool> sparse_layers(const Reading& reading) {
  const JsonFields& fields = reading.fields;
  const int64_t step = fields.get_int("decoder_sparse_step").value_or(1);
  if (step < 1) throw bad_input("decoder_sparse_step is {}; it must be positive", step);
  std::vector<bool> layers(static_cast<size_t>(reading.config.num_layers));
  const auto dense = layers_listed(reading, "mlp_only_layers");
  for (size_t layer = 0; layer < layers.size(); ++layer)
    layers[layer] = static_cast<int64_t>(layer + 1) % step == 0 && !(dense && (*dense)[layer]);
  return layers;
}

void read_local_experts(Reading& reading, int64_t experts, int64_t chosen) {
  Mixture& mixture = reading.config.mixture;
  mixture.experts = int_of(reading.fields, "num_local_experts", experts);
  mixture.chosen = int_of(reading.fields, "num_experts_per_tok", chosen);
  mixture.width = reading.config.intermediate_size;
  mixture.layers.assign(static_cast<size_t>(reading.config.num_layers), true);
}

// The rotary embedding -------------------------------------------------------------------------------

static std::string rope_type_of(const JsonFields& rope) {
  const auto newer = rope.get_string("rope_type"), older = rope.get_string("type");
  if (newer && older && *newer != *older)
    throw bad_input("rope_scaling says both rope_type '{}' and type '{}'", printable(*newer),
                    printable(*older));
  const std::string type = newer ? *newer : older.value_or("default");
  // Phi 3 used other names for it.
  return type == "su" || (type == "yarn" && rope.find("short_factor")) ? "longrope" : type;
}

/// The ratio of the context to that of the first training.
static double stretch_of(const JsonFields& rope, const JsonFields& fields, const RopeScaling& scaling) {
  if (const auto factor = rope.get_number("factor")) return *factor;
  if (!(scaling.original_positions > 0)) return 0;  // refused by the later check
  return fields.need_number("max_position_embeddings") / scaling.original_positions;
}

static double original_positions(const JsonFields& rope, const JsonFields& fields, double otherwise) {
  for (const JsonFields* const place : {&fields, &rope})
    if (const auto original = place->get_number("original_max_position_embeddings")) return *original;
  if (otherwise > 0) return otherwise;
  return fields.need_number("max_position_embeddings");
}

static void read_llama3(const JsonFields& rope, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::llama3;
  scaling.factor = rope.need_number("factor");
  scaling.low_frequency_factor = rope.need_number("low_freq_factor");
  scaling.high_frequency_factor = rope.need_number("high_freq_factor");
}

static void read_yarn(const JsonFields& rope, const JsonFields& fields, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::yarn;
  scaling.factor = stretch_of(rope, fields, scaling);
  // 0 also stands for the default.
  const auto turns = [&](const char* name, double otherwise) {
    const double value = rope.get_number(name).value_or(otherwise);
    return value == 0 ? otherwise : value;
  };
  scaling.fast_turns = turns("beta_fast", scaling.fast_turns);
  scaling.slow_turns = turns("beta_slow", scaling.slow_turns);
  scaling.whole_bounds = rope.get_bool("truncate").value_or(true);
  const auto loudness = [&](double weight) {
    return scaling.factor <= 1 ? 1 : 0.1 * weight * std::log(scaling.factor) + 1;
  };
  const double one = rope.get_number("mscale").value_or(0),
               all = rope.get_number("mscale_all_dim").value_or(0);
  const double usual = one != 0 && all != 0 ? loudness(one) / loudness(all) : loudness(1);
  scaling.attention_factor = rope.get_number("attention_factor").value_or(usual);
}

static std::vector<float> read_divisors(const JsonFields& rope, std::string_view type, const char* name) {
  const nlohmann::json* list = rope.find(name);
  std::vector<float> divisors;
  if (list && list->is_array())
    for (const nlohmann::json& value : *list)
      if (value.is_number()) divisors.push_back(value.get<float>());
  if (!list || !list->is_array() || divisors.size() != list->size())
    throw bad_input("rope scaling of type '{}' needs {}, a list of numbers", type, name);
  return divisors;
}

static void read_longrope(const JsonFields& rope, const JsonFields& fields, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::longrope;
  scaling.divisors = read_divisors(rope, "longrope", "short_factor");
  scaling.long_divisors = read_divisors(rope, "longrope", "long_factor");
  scaling.factor = stretch_of(rope, fields, scaling);
  const double usual =
      scaling.factor > 1 ? std::sqrt(1 + std::log(scaling.factor) / std::log(scaling.original_positions)) : 1;
  scaling.attention_factor = rope.get_number("attention_factor").value_or(usual);
}

[[noreturn]] void refuse_rope_type(const std::string& type) {
  throw bad_input(
      "rope_scaling is of type '{}'; supported are 'default', 'linear', 'llama3', 'yarn' and 'longrope'",
      printable(type));
}

static RopeScaling scaling_of(const JsonFields& rope, const JsonFields& fields, double original) {
  RopeScaling scaling;
  const std::string type = rope_type_of(rope);
  if (type == "default") return scaling;
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::linear;
    scaling.factor = rope.need_number("factor");
    return scaling;
  }
  if (type == "divided") {  // GGUF files represent llama3 in this way; no config.json has it
    scaling.kind = RopeScaling::Kind::divided;
    scaling.divisors = read_divisors(rope, type, "divisors");
    return scaling;
  }
  if (type == "proportional") {
    scaling.kind = RopeScaling::Kind::proportional;
    scaling.factor = rope.get_number("factor").value_or(1);
    scaling.share = rope.get_number("partial_rotary_factor").value_or(1);
    return scaling;
  }
  if (type != "llama3" && type != "yarn" && type != "longrope") refuse_rope_type(type);
  scaling.original_positions = original_positions(rope, fields, original);
  if (type == "llama3") read_llama3(rope, scaling);
  if (type == "yarn") read_yarn(rope, fields, scaling);
  if (type == "longrope") read_longrope(rope, fields, scaling);
  return scaling;
}

Rope rope_of(const JsonFields& config, const nlohmann::json* object, double theta,
             double original_positions) {
  Rope rope;
  rope.theta = theta;
  if (!object) return rope;
  const JsonFields fields(*object);
  rope.theta = fields.get_number("rope_theta").value_or(theta);
  rope.scaling = scaling_of(fields, config, original_positions);
  return rope;
}

}  // namespace kvcodec::families

// The whole ------------------------------------------------------------------------------------------

namespace kvcodec {
namespace {

// A config.json has a few kilobytes; some list every layer.
constexpr uint64_t kMaxBytes = 4 << 20;

using families::Family;
using families::Reading;

std::string supported() {
  std::vector<std::string_view> names;
  for (const Family& family : families::all_families()) names.push_back(family.model_type);
  return fmt::format("supported model types are {}", families::listed(names));
}

/// The name in "architectures", or empty.
std::string architecture_of(const JsonFields& fields) {
  const nlohmann::json* list = fields.find("architectures");
  if (!list || (list->is_array() && list->empty())) return "";
  if (!list->is_array() || list->size() != 1 || !(*list)[0].is_string())
    throw bad_input("architectures is {}; it must be a list of one name, as [\"LlamaForCausalLM\"]",
                    printable(list->dump()));
  return (*list)[0].get<std::string>();
}

const Family& family_of(const JsonFields& fields) {
  const std::string architecture = architecture_of(fields);
  const std::string type = fields.get_string("model_type").value_or("");
  if (architecture.empty() && type.empty())
    throw bad_input("neither architectures nor model_type is there; one must be, and {}", supported());
  for (const Family& family : families::all_families()) {
    const std::string prefix(family.class_prefix);
    const bool class_fits = architecture == prefix + "ForCausalLM" || architecture == prefix + "Model" ||
                            architecture == prefix + "LMHeadModel";
    if ((architecture.empty() || class_fits) && (type.empty() || type == family.model_type)) return family;
  }
  throw bad_input("architecture is '{}' (model_type '{}'), which is not supported; {}",
                  printable(architecture), printable(type), supported());
}

int need_size(const JsonFields& fields, const char* name) {
  return families::as_int(name, fields.need_int(name));
}

/// rope_scaling (older files, beside rope_theta) or rope_parameters (newer ones, with rope_theta inside).
const nlohmann::json* rope_object(const JsonFields& fields) {
  // transformers prefers rope_scaling if both exist.
  for (const char* name : {"rope_scaling", "rope_parameters"})
    if (const nlohmann::json* object = fields.find(name);
        object && !(object->is_object() && object->empty())) {
      if (!object->is_object())
        throw bad_input("{} is {}; it must be null or an object", name, printable(object->dump()));
      return object;
    }
  return nullptr;
}

/// Number of dimensions of a head that are turned; 0 = all.
int turned_dims_of(const Family& family, const JsonFields& fields, const JsonFields* rope, int head_dim) {
  std::optional<double> said;
  if (rope) said = rope->get_number("partial_rotary_factor");
  if (!said) said = fields.get_number(family.partial_rotary_field);
  const double factor = said.value_or(family.partial_rotary);
  if (factor == 1) return 0;
  if (!family.may_be_partial)
    throw bad_input("{} is {}; only 1 is supported for {} (the whole head is turned)",
                    family.partial_rotary_field, factor, family.model_type);
  if (!(factor > 0 && factor < 1))
    throw bad_input("{} is {}; it must be in 0..1", family.partial_rotary_field, factor);
  return std::max(1, static_cast<int>(head_dim * factor));  // 1 is refused later because it is odd
}

void read_rope(const Family& family, Reading& reading) {
  ModelConfig& config = reading.config;
  const nlohmann::json* object = reading.rope = rope_object(reading.fields);
  const double theta = reading.fields.get_number(family.rope_theta_field).value_or(family.rope_theta);
  if (family.rope_by_layer_type) {
    config.rope.theta = theta;
    return;
  }
  if (object)
    for (const auto& [name, value] : object->items())
      if (value.is_object())
        throw bad_input("rope_parameters differ by layer type ('{}'); one set for all layers is supported",
                        printable(name));
  config.rope = families::rope_of(reading.fields, object, theta, family.original_positions);
  if (config.rope.scaling.kind == RopeScaling::Kind::proportional) families::refuse_rope_type("proportional");
  std::optional<JsonFields> rope;
  if (object) rope.emplace(*object);
  config.rope.dims = turned_dims_of(family, reading.fields, rope ? &*rope : nullptr, config.head_dim);
}

void read_heads(const Family& family, const JsonFields& fields, ModelConfig& config) {
  config.num_q_heads = need_size(fields, "num_attention_heads");
  config.num_kv_heads = families::int_of(fields, "num_key_value_heads", config.num_q_heads);
  if (const auto head_dim = fields.get_int("head_dim")) {
    config.head_dim = families::as_int("head_dim", *head_dim);
  } else if (family.head_dim > 0) {
    config.head_dim = family.head_dim;
  } else {
    if (config.num_q_heads < 1 || config.hidden_size % config.num_q_heads != 0)
      throw bad_input("hidden_size is {}; without head_dim it must be a multiple of num_attention_heads ({})",
                      config.hidden_size, config.num_q_heads);
    config.head_dim = config.hidden_size / config.num_q_heads;
  }
}

/// transformers ignores the switches in a family without them, but a file that sets them indicates an unknown model.
void read_biases(const Family& family, const JsonFields& fields, ModelConfig& config) {
  const bool attention = fields.get_bool("attention_bias").value_or(family.attention_bias);
  const bool mlp = fields.get_bool("mlp_bias").value_or(false);
  if (attention && !family.may_have_attention_bias)
    throw bad_input("attention_bias is true; {} models have none to switch", family.model_type);
  if (mlp && !family.may_have_mlp_bias)
    throw bad_input("mlp_bias is true; {} models have none", family.model_type);
  config.qkv_bias = config.output_bias = attention;
  config.mlp_bias = mlp;
}

Activation activation_of(const Family& family, const JsonFields& fields) {
  const auto name = fields.get_string(family.activation_field);
  if (!name) return family.activation;
  if (*name == "silu" || *name == "swish") return Activation::silu;
  if (*name == "gelu") return Activation::gelu;
  if (*name == "gelu_pytorch_tanh" || *name == "gelu_new" || *name == "gelu_fast")
    return Activation::gelu_tanh;
  throw bad_input("{} is '{}'; supported are 'silu', 'gelu' and 'gelu_pytorch_tanh'", family.activation_field,
                  printable(*name));
}

DType dtype_of(const JsonFields& fields) {
  const auto newer = fields.get_string("dtype"), older = fields.get_string("torch_dtype");
  const std::string name = newer ? *newer : older.value_or("float32");
  if (name == "float32") return DType::f32;
  if (name == "float16") return DType::f16;
  if (name == "bfloat16") return DType::bf16;
  throw bad_input("torch_dtype is '{}'; supported are float32, float16 and bfloat16", printable(name));
}

void refuse_quantized(const JsonFields& fields) {
  const nlohmann::json* object = fields.find("quantization_config");
  if (!object) return;
  std::string method = "something";
  if (object->is_object()) method = JsonFields(*object).get_string("quant_method").value_or(method);
  const auto block =
      object->is_object() ? object->value("weight_block_size", nlohmann::json()) : nlohmann::json();
  if (method == "mxfp4" || (method == "fp8" && block == nlohmann::json({128, 128}))) return;
  throw bad_input(
      "quantization_config says {}; weights must be float32, float16, bfloat16, mxfp4, or fp8 with weight_block_size [128, "
      "128]",
      printable(method));
}

ModelDescription describe(nlohmann::json object) {
  const JsonFields fields(object);
  ModelDescription description;
  ModelConfig& config = description.config;
  const Family& family = family_of(fields);
  if (family.rename) family.rename(object);
  refuse_quantized(fields);
  if (!fields.get_bool("is_causal").value_or(true)) families::refuse_bidirectional("is_causal", "false");
  config.family = family.model_type;
  config.activation = activation_of(family, fields);
  config.num_layers = need_size(fields, "num_hidden_layers");
  config.hidden_size = need_size(fields, "hidden_size");
  config.intermediate_size = need_size(fields, "intermediate_size");
  config.vocabulary_size = need_size(fields, "vocab_size");
  config.max_positions = families::int_of(fields, "max_position_embeddings", 0);
  config.norm_epsilon = fields.get_number(family.norm_epsilon_field).value_or(family.norm_epsilon);
  config.tied_embeddings = fields.get_bool("tie_word_embeddings").value_or(family.tied_embeddings);
  read_heads(family, fields, config);
  Reading reading{fields, description, config, nullptr};
  read_rope(family, reading);
  read_biases(family, fields, config);
  // Checked before lists with an entry per layer are made.
  if (config.num_layers < 1 || config.num_layers > kMaxLayers)
    throw bad_input("num_hidden_layers is {}; it must be in 1..{}", config.num_layers, kMaxLayers);
  if (family.parts) family.parts(config);
  if (family.describe) family.describe(reading);
  if (config.window.empty()) families::set_one_window(reading, 0);
  description.dtype = dtype_of(fields);
  check(config);
  stretch_context(config);
  description.rope_scaling = describe_rope(config, reading.rope);
  return description;
}

/// The description of the part that reads text, if the model reads pictures or sounds too; else all of it.
nlohmann::json text_part(nlohmann::json object) {
  if (!object.contains("text_config") || !object["text_config"].is_object()) return object;
  nlohmann::json text = object["text_config"];
  for (const char* name : {"dtype", "torch_dtype", "tie_word_embeddings", "quantization_config"})
    if (object.contains(name) && !text.contains(name)) text[name] = object[name];
  return text;
}

}  // namespace

ModelDescription parse_model_config(const std::string& text, const std::string& file) {
  const nlohmann::json object = text_part(parse_json_object(text, file));
  return with_context(file, [&] { return describe(object); });
}

ModelDescription read_model_config(const std::string& directory) {
  const std::string file = directory + "/config.json";
  const nlohmann::json object = text_part(read_json_object(file, kMaxBytes));
  return with_context(file, [&] { return describe(object); });
}

}  // namespace kvcodec
