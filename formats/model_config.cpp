#include "formats/model_config.hpp"

#include <algorithm>
#include <limits>

#include "formats/json_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

// A config.json has a few kilobytes; some list every layer.
constexpr uint64_t kMaxBytes = 4 << 20;

// Defaults that transformers has for all four families.
constexpr double kNormEpsilon = 1e-6;
constexpr double kRopeTheta = 10000;
constexpr int64_t kSlidingWindow = 4096;  // Mistral's, and Qwen's once windows are switched on
constexpr int64_t kMaxWindowLayers = 28;  // Qwen: layers below it never have a window
constexpr int64_t kQwen3HeadDim = 128;

constexpr const char* kOriginalPositions = "original_max_position_embeddings";  // of rope_scaling

struct FamilyName {
  ModelFamily family;
  const char* model_type;
  const char* class_prefix;  // of the names in "architectures"
};
constexpr FamilyName kFamilies[] = {{ModelFamily::llama, "llama", "Llama"},
                                    {ModelFamily::mistral, "mistral", "Mistral"},
                                    {ModelFamily::qwen2, "qwen2", "Qwen2"},
                                    {ModelFamily::qwen3, "qwen3", "Qwen3"}};
constexpr const char* kSupported =
    "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM";

/// What "architectures" says, or empty.
std::string architecture_of(const JsonFields& fields) {
  const nlohmann::json* list = fields.find("architectures");
  if (!list || (list->is_array() && list->empty())) return "";
  if (!list->is_array() || list->size() != 1 || !(*list)[0].is_string())
    throw bad_input("architectures is {}; it must be a list of one name: {}", printable(list->dump()),
                    kSupported);
  return (*list)[0].get<std::string>();
}

ModelFamily family_of(const JsonFields& fields) {
  const std::string architecture = architecture_of(fields);
  const std::string type = fields.get_string("model_type").value_or("");
  if (architecture.empty() && type.empty())
    throw bad_input(
        "neither architectures nor model_type is there; one must be, with {} (llama, mistral, qwen2, qwen3)",
        kSupported);
  for (const FamilyName& name : kFamilies) {
    const std::string prefix = name.class_prefix;
    const bool class_fits = architecture == prefix + "ForCausalLM" || architecture == prefix + "Model";
    if ((architecture.empty() || class_fits) && (type.empty() || type == name.model_type)) return name.family;
  }
  throw bad_input("architecture is '{}' (model_type '{}'); supported are {}", printable(architecture),
                  printable(type), kSupported);
}

/// An integer that must fit int; its range is checked with the whole configuration.
int as_int(const char* name, int64_t value) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
    throw bad_input("{} is {}; it does not fit 32 bits", name, value);
  return static_cast<int>(value);
}

int need_size(const JsonFields& fields, const char* name) { return as_int(name, fields.need_int(name)); }

/// rope_scaling (older files, beside rope_theta) or rope_parameters (newer ones, with rope_theta inside).
const nlohmann::json* rope_object(const JsonFields& fields) {
  // transformers prefers rope_scaling where both stand.
  for (const char* name : {"rope_scaling", "rope_parameters"})
    if (const nlohmann::json* object = fields.find(name);
        object && !(object->is_object() && object->empty())) {
      if (!object->is_object())
        throw bad_input("{} is {}; it must be null or an object", name, printable(object->dump()));
      return object;
    }
  return nullptr;
}

std::string rope_type_of(const JsonFields& rope) {
  const auto newer = rope.get_string("rope_type"), older = rope.get_string("type");
  if (newer && older && *newer != *older)
    throw bad_input("rope_scaling says both rope_type '{}' and type '{}'", printable(*newer),
                    printable(*older));
  if (newer) return *newer;
  return older.value_or("default");
}

void check_whole_head_turned(const JsonFields& fields) {
  const double factor = fields.get_number("partial_rotary_factor").value_or(1);
  if (factor != 1)
    throw bad_input("partial_rotary_factor is {}; only 1 is supported (the whole head is turned)", factor);
}

RopeScaling scaling_of(const JsonFields& rope, const JsonFields& fields) {
  RopeScaling scaling;
  const std::string type = rope_type_of(rope);
  if (type == "default") return scaling;
  if (type != "linear" && type != "llama3")
    throw bad_input("rope_scaling is of type '{}'; supported are 'default', 'linear' and 'llama3'",
                    printable(type));
  scaling.factor = rope.need_number("factor");
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::linear;
    return scaling;
  }
  scaling.kind = RopeScaling::Kind::llama3;
  scaling.low_frequency_factor = rope.need_number("low_freq_factor");
  scaling.high_frequency_factor = rope.need_number("high_freq_factor");
  const auto original = rope.get_number(kOriginalPositions);
  scaling.original_positions = original ? *original : fields.need_number("max_position_embeddings");
  return scaling;
}

/// What GGUF files have instead (gguf_model.cpp).
RopeScaling divided_scaling_of(const JsonFields& fields) {
  RopeScaling scaling{.kind = RopeScaling::Kind::divided};
  const nlohmann::json* list = fields.find("divisors");
  if (!list || !list->is_array()) throw bad_input("divisors is missing; it must be a list of numbers");
  for (const auto& divisor : *list) {
    if (!divisor.is_number())
      throw bad_input("divisors has {}; it must be a list of numbers", printable(divisor.dump()));
    scaling.divisors.push_back(divisor.get<float>());
  }
  return scaling;
}

void read_rope(const JsonFields& fields, ModelDescription& description) {
  ModelConfig& config = description.config;
  check_whole_head_turned(fields);
  config.rope_theta = fields.get_number("rope_theta").value_or(kRopeTheta);
  const nlohmann::json* object = rope_object(fields);
  if (!object) return;
  for (const auto& [name, value] : object->items())
    if (value.is_object())
      throw bad_input("rope_parameters differ by layer type ('{}'); one set for all layers is supported",
                      printable(name));
  const JsonFields rope(*object);
  check_whole_head_turned(rope);
  config.rope_theta = rope.get_number("rope_theta").value_or(config.rope_theta);
  config.rope_scaling = scaling_of(rope, fields);
  if (config.rope_scaling.kind == RopeScaling::Kind::none) return;
  nlohmann::json described = *object;
  // What it may have from elsewhere in config.json: the text is to say all.
  if (config.rope_scaling.kind == RopeScaling::Kind::llama3 && !rope.find(kOriginalPositions))
    described[kOriginalPositions] = config.rope_scaling.original_positions;
  description.rope_scaling = described.dump(-1, ' ', true);
}

void read_heads(const JsonFields& fields, ModelConfig& config) {
  config.num_q_heads = need_size(fields, "num_attention_heads");
  config.num_kv_heads =
      as_int("num_key_value_heads", fields.get_int("num_key_value_heads").value_or(config.num_q_heads));
  if (const auto head_dim = fields.get_int("head_dim")) {
    config.head_dim = as_int("head_dim", *head_dim);
  } else if (config.family == ModelFamily::qwen3) {
    config.head_dim = kQwen3HeadDim;
  } else {
    if (config.num_q_heads < 1 || config.hidden_size % config.num_q_heads != 0)
      throw bad_input("hidden_size is {}; without head_dim it must be a multiple of num_attention_heads ({})",
                      config.hidden_size, config.num_q_heads);
    config.head_dim = config.hidden_size / config.num_q_heads;
  }
}

void read_biases(const JsonFields& fields, ModelConfig& config) {
  const bool attention_bias = fields.get_bool("attention_bias").value_or(false);
  const bool mlp_bias = fields.get_bool("mlp_bias").value_or(false);
  // Qwen2 has biases on q, k, v always and nowhere else; Mistral none; Qwen3's MLP none. transformers ignores
  // the switches there, but a file that sets them means a model we do not know.
  const bool allows_attention = config.family == ModelFamily::llama || config.family == ModelFamily::qwen3;
  if (attention_bias && !allows_attention)
    throw bad_input("attention_bias is true; {} models have none to switch", name_of(config.family));
  if (mlp_bias && config.family != ModelFamily::llama)
    throw bad_input("mlp_bias is true; {} models have none", name_of(config.family));
  config.qkv_bias = attention_bias || config.family == ModelFamily::qwen2;
  config.output_bias = attention_bias;
  config.mlp_bias = mlp_bias;
  config.qk_norm = config.family == ModelFamily::qwen3;
}

/// The layer_types list, checked against the number of layers; empty if there is none.
std::vector<std::string> layer_types_of(const JsonFields& fields, int num_layers) {
  const nlohmann::json* list = fields.find("layer_types");
  if (!list) return {};
  std::vector<std::string> types;
  if (list->is_array() && list->size() == static_cast<size_t>(num_layers))
    for (const auto& type : *list)
      if (type == "full_attention" || type == "sliding_attention") types.push_back(type.get<std::string>());
  if (types.size() != static_cast<size_t>(num_layers))
    throw bad_input("layer_types must list 'full_attention' or 'sliding_attention' for each of {} layers",
                    num_layers);
  return types;
}

void read_windows(const JsonFields& fields, ModelConfig& config) {
  const bool qwen = config.family == ModelFamily::qwen2 || config.family == ModelFamily::qwen3;
  int64_t window = 0;
  if (config.family != ModelFamily::llama &&
      !fields.has_null("sliding_window")) {  // Llama's code has none, whatever is said
    window = fields.get_int("sliding_window").value_or(kSlidingWindow);
    if (window < 1) throw bad_input("sliding_window is {}; it must be positive or null", window);
  }
  if (qwen && !fields.get_bool("use_sliding_window").value_or(false)) window = 0;
  const std::vector<std::string> types = layer_types_of(fields, config.num_layers);
  const int64_t first = qwen ? fields.get_int("max_window_layers").value_or(kMaxWindowLayers) : 0;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    bool slides = window > 0 && layer >= first;
    if (!types.empty()) {
      const bool listed = types[static_cast<size_t>(layer)] == "sliding_attention";
      // Only Qwen's code follows the list; elsewhere it may repeat what holds anyway.
      if (!qwen && listed != slides)
        throw bad_input(
            "layer_types says '{}' for layer {}; a {} model with that sliding_window has the same attention "
            "in all "
            "layers",
            types[static_cast<size_t>(layer)], layer, name_of(config.family));
      if (listed && window == 0)
        throw bad_input("layer_types has 'sliding_attention', but no sliding_window is in use");
      slides = listed;
    }
    config.window.push_back(slides ? window : 0);
  }
}

DType dtype_of(const JsonFields& fields) {
  const auto newer = fields.get_string("dtype"), older = fields.get_string("torch_dtype");
  const std::string name = newer ? *newer : older.value_or("float32");
  if (name == "float32") return DType::f32;
  if (name == "float16") return DType::f16;
  if (name == "bfloat16") return DType::bf16;
  throw bad_input("torch_dtype is '{}'; supported are float32, float16 and bfloat16", printable(name));
}

void refuse_unsupported(const JsonFields& fields) {
  if (fields.find("quantization_config"))
    throw bad_input("quantization_config is set; weights must be float32, float16 or bfloat16");
  const std::string activation = fields.get_string("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish")
    throw bad_input("hidden_act is '{}'; supported is 'silu'", printable(activation));
}

ModelDescription describe(const JsonFields& fields) {
  ModelDescription description;
  ModelConfig& config = description.config;
  config.family = family_of(fields);
  refuse_unsupported(fields);
  config.num_layers = need_size(fields, "num_hidden_layers");
  config.hidden_size = need_size(fields, "hidden_size");
  config.intermediate_size = need_size(fields, "intermediate_size");
  config.vocabulary_size = need_size(fields, "vocab_size");
  config.max_positions =
      as_int("max_position_embeddings", fields.get_int("max_position_embeddings").value_or(0));
  config.norm_epsilon = fields.get_number("rms_norm_eps").value_or(kNormEpsilon);
  config.tied_embeddings = fields.get_bool("tie_word_embeddings").value_or(false);
  read_heads(fields, config);
  read_rope(fields, description);
  read_biases(fields, config);
  // Before a list with an entry per layer is made.
  if (config.num_layers < 1 || config.num_layers > kMaxLayers)
    throw bad_input("num_hidden_layers is {}; it must be in 1..{}", config.num_layers, kMaxLayers);
  read_windows(fields, config);
  description.dtype = dtype_of(fields);
  check(config);
  return description;
}

}  // namespace

ModelDescription parse_model_config(const std::string& text, const std::string& file) {
  const nlohmann::json object = parse_json_object(text, file);
  return with_context(file, [&] { return describe(JsonFields(object)); });
}

RopeScaling parse_rope_scaling(const std::string& text) {
  if (text.empty()) return {};
  const nlohmann::json object = parse_json_object(text, "rope_scaling");
  return with_context("rope_scaling", [&] {
    const JsonFields fields(object);
    return rope_type_of(fields) == "divided" ? divided_scaling_of(fields) : scaling_of(fields, fields);
  });
}

ModelDescription read_model_config(const std::string& directory) {
  const std::string file = directory + "/config.json";
  const nlohmann::json object = read_json_object(file, kMaxBytes);
  return with_context(file, [&] { return describe(JsonFields(object)); });
}

}  // namespace kvcodec
