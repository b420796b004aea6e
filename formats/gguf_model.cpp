#include "formats/gguf_model.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include <nlohmann/json.hpp>

#include "formats/json_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr double kRopeTheta = 10000;  // what llama.cpp takes where nothing is said
constexpr const char* kRopeDivisors = "rope_freqs.weight";

struct Architecture {
  const char* name;
  std::string_view family;
  bool pairs_neighbours;  // turns dimensions 2j and 2j + 1 together; rows of q and k are stored for that
};
constexpr Architecture kArchitectures[] = {
    {"llama", "llama", true}, {"qwen2", "qwen2", false}, {"qwen3", "qwen3", false}};

/// A tensor outside the layers, or of one layer (its part behind "blk.N." and "model.layers.N."), in a GGUF
/// file and in a checkpoint, without ".weight" or ".bias".
struct TensorName {
  const char *own, *checkpoint;
};
constexpr TensorName kModelTensors[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr TensorName kLayerTensors[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};
constexpr std::string_view kOwnLayer = "blk.", kCheckpointLayer = "model.layers.";

/// Takes "N." off the front of text; none: it does not begin so.
std::optional<std::string> take_layer(std::string_view& text) {
  const size_t digits = text.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos || text[digits] != '.') return std::nullopt;
  std::string layer(text.substr(0, digits));
  text.remove_prefix(digits + 1);
  return layer;
}

/// The name that `to` has where `from` has the given one; empty: none.
std::string translate(std::string_view name, const char* TensorName::*from, const char* TensorName::*to) {
  const bool own = from == &TensorName::own;
  const std::string_view from_layer = own ? kOwnLayer : kCheckpointLayer,
                         to_layer = own ? kCheckpointLayer : kOwnLayer;
  std::string before;
  std::span<const TensorName> known = kModelTensors;
  if (name.starts_with(from_layer)) {
    name.remove_prefix(from_layer.size());
    const auto layer = take_layer(name);
    if (!layer) return "";
    before = fmt::format("{}{}.", to_layer, *layer);
    known = kLayerTensors;
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return "";
  const std::string_view kind = name.substr(dot);
  if (kind != ".weight" && kind != ".bias") return "";
  for (const TensorName& tensor : known)
    if (name.substr(0, dot) == tensor.*from) return fmt::format("{}{}{}", before, tensor.*to, kind);
  return "";
}

const Architecture& architecture_of(const Gguf& file) {
  const std::string name = file.need_string("general.architecture");
  for (const Architecture& known : kArchitectures)
    if (name == known.name) return known;
  throw bad_input("architecture is '{}', which is not supported yet; supported are llama, qwen2 and qwen3",
                  printable(name));
}

/// Keys of the architecture: "llama.block_count" …
class Fields {
 public:
  Fields(const Gguf& file, const Architecture& architecture) : file_(file), prefix_(architecture.name) {
    prefix_ += '.';
  }

  std::string key(const char* name) const { return prefix_ + name; }
  int need_size(const char* name) const { return as_size(name, file_.need_int(key(name))); }
  int size_or(const char* name, int otherwise) const {
    const auto value = file_.get_int(key(name));
    return value ? as_size(name, *value) : otherwise;
  }
  /// A size that may be listed for each layer; all must be the same.
  int need_size_of_layers(const char* name) const {
    if (!file_.is_array(key(name))) return need_size(name);
    const std::vector<int64_t> values = *file_.get_ints(key(name));
    if (values.empty() ||
        std::any_of(values.begin(), values.end(), [&](int64_t v) { return v != values[0]; }))
      throw bad_input("{} differs by layer; one value for all layers is supported", key(name));
    return as_size(name, values[0]);
  }
  std::optional<double> get_number(const char* name) const { return file_.get_number(key(name)); }
  double need_number(const char* name) const { return file_.need_number(key(name)); }
  std::optional<std::string> get_string(const char* name) const { return file_.get_string(key(name)); }
  bool has(const char* name) const { return file_.has(key(name)); }

 private:
  int as_size(const char* name, int64_t value) const {
    if (value < 0 || value > std::numeric_limits<int>::max())
      throw bad_input("{} is {}; it must be in 0..{}", key(name), value, std::numeric_limits<int>::max());
    return static_cast<int>(value);
  }

  const Gguf& file_;
  std::string prefix_;
};

void refuse_unsupported(const Gguf& file, const Fields& fields) {
  if (const auto parts = file.get_int("split.count"); parts && *parts > 1)
    throw bad_input("is one of {} parts of a split model; join them to one file first", *parts);
  if (const int experts = fields.size_or("expert_count", 0); experts > 0)
    throw bad_input("{} is {}; mixtures of experts are not supported yet", fields.key("expert_count"),
                    experts);
}

/// What this program would not look at must not be there: the model would be another.
void refuse_unknown_tensors(const Gguf& file, const Architecture& architecture) {
  for (const auto& [name, tensor] : file.tensors())
    if (name != kRopeDivisors && translate(name, &TensorName::own, &TensorName::checkpoint).empty())
      throw bad_input("tensor '{}' is there; {} models that are supported have none", printable(name),
                      architecture.name);
}

void read_heads(const Fields& fields, ModelConfig& config) {
  config.num_q_heads = fields.need_size_of_layers("attention.head_count");
  config.num_kv_heads = fields.has("attention.head_count_kv")
                            ? fields.need_size_of_layers("attention.head_count_kv")
                            : config.num_q_heads;
  if (fields.has("attention.key_length")) {
    config.head_dim = fields.need_size("attention.key_length");
  } else {
    if (config.num_q_heads < 1 || config.hidden_size % config.num_q_heads != 0)
      throw bad_input("{} is {}; without {} it must be a multiple of {} ({})", fields.key("embedding_length"),
                      config.hidden_size, fields.key("attention.key_length"),
                      fields.key("attention.head_count"), config.num_q_heads);
    config.head_dim = config.hidden_size / config.num_q_heads;
  }
  const auto must_be_head_dim = [&](const char* name) {
    if (const int value = fields.size_or(name, config.head_dim); value != config.head_dim)
      throw bad_input("{} is {}; only the length of a key ({}) is supported", fields.key(name), value,
                      config.head_dim);
  };
  must_be_head_dim("attention.value_length");
  must_be_head_dim("rope.dimension_count");
}

/// The scaling that keys describe.
RopeScaling scaling_of_keys(const Fields& fields) {
  RopeScaling scaling;
  auto factor = fields.get_number("rope.scaling.factor");
  if (!factor) factor = fields.get_number("rope.scale_linear");  // the name in older files
  const std::string type = fields.get_string("rope.scaling.type").value_or(factor ? "linear" : "none");
  if (type == "none") return scaling;
  if (type != "linear")
    throw bad_input("{} is '{}'; supported are 'none' and 'linear'", fields.key("rope.scaling.type"),
                    printable(type));
  if (!factor || *factor == 0 || *factor == 1) return scaling;  // 0: as if the key were not there
  scaling.kind = RopeScaling::Kind::linear;
  scaling.factor = *factor;
  return scaling;
}

void read_rope(const Gguf& file, const Fields& fields, ModelDescription& description) {
  ModelConfig& config = description.config;
  config.rope.theta = fields.get_number("rope.freq_base").value_or(kRopeTheta);
  config.rope.scaling = scaling_of_keys(fields);
  const bool linear = config.rope.scaling.kind == RopeScaling::Kind::linear;
  const auto divisors = file.tensors().find(kRopeDivisors);
  if (divisors == file.tensors().end()) {
    if (linear)
      description.rope_scaling =
          nlohmann::json({{"rope_type", "linear"}, {"factor", config.rope.scaling.factor}}).dump();
    return;
  }
  const Gguf::Tensor& tensor = divisors->second;
  const std::vector<uint64_t> shape = {static_cast<uint64_t>(config.head_dim) / 2};
  if (tensor.usable != TensorType::f32 || tensor.view.shape != shape)
    throw bad_input("tensor '{}': is {} [{}]; it must be F32 [{}]", kRopeDivisors, tensor.type,
                    fmt::join(tensor.view.shape, ", "), shape[0]);
  if (linear)
    throw bad_input("tensor '{}' and {} are both there; only one kind of scaling is supported", kRopeDivisors,
                    fields.key("rope.scaling.factor"));
  config.rope.scaling.kind = RopeScaling::Kind::divided;
  config.rope.scaling.divisors = read_floats(tensor.view);
  description.rope_scaling =
      nlohmann::json({{"rope_type", "divided"}, {"divisors", config.rope.scaling.divisors}}).dump();
}

void read_windows(const Architecture& architecture, const Fields& fields, ModelConfig& config) {
  // Qwen files that have the key have it from a config.json that switches windows off.
  const bool slides = architecture.family == "llama";
  const int window = slides ? fields.size_or("attention.sliding_window", 0) : 0;
  config.window.assign(static_cast<size_t>(config.num_layers), window);
}

ModelDescription describe(const Gguf& file, const Architecture& architecture) {
  const Fields fields(file, architecture);
  refuse_unsupported(file, fields);
  refuse_unknown_tensors(file, architecture);
  ModelDescription description;
  ModelConfig& config = description.config;
  config.family = architecture.family;
  config.num_layers = fields.need_size("block_count");
  config.hidden_size = fields.need_size("embedding_length");
  config.intermediate_size = fields.need_size_of_layers("feed_forward_length");
  config.max_positions = fields.size_or("context_length", 0);
  config.norm_epsilon = fields.need_number("attention.layer_norm_rms_epsilon");
  // Before a list with an entry per layer is made.
  if (config.num_layers < 1 || config.num_layers > kMaxLayers)
    throw bad_input("{} is {}; it must be in 1..{}", fields.key("block_count"), config.num_layers,
                    kMaxLayers);
  read_heads(fields, config);
  read_rope(file, fields, description);
  read_windows(architecture, fields, config);

  const auto has = [&](const char* name) { return file.tensors().contains(name); };
  const auto embedding = file.tensors().find("token_embd.weight");
  if (embedding == file.tensors().end()) throw bad_input("tensor 'token_embd.weight' is missing");
  const uint64_t rows = embedding->second.view.shape.front();
  if (rows > static_cast<uint64_t>(std::numeric_limits<int>::max()))
    throw bad_input("tensor 'token_embd.weight': has {} rows; that many tokens are not supported", rows);
  config.vocabulary_size = static_cast<int>(rows);
  config.tied_embeddings = !has("output.weight");
  config.qkv_bias = architecture.family == "qwen2" || has("blk.0.attn_q.bias");
  config.output_bias = has("blk.0.attn_output.bias");
  config.mlp_bias = has("blk.0.ffn_up.bias");
  if (architecture.family == "qwen3") config.qk_norm = QkNorm::heads;
  check(config);
  return description;
}

}  // namespace

ModelDescription describe_model(const Gguf& file) {
  return with_context(file.name(), [&] { return describe(file, architecture_of(file)); });
}

GgufWeights::GgufWeights(const Gguf& file, const ModelConfig& config) : file_(file) {
  const bool pairs = architecture_of(file).pairs_neighbours;
  for (const auto& [own, tensor] : file.tensors()) {
    if (!tensor.usable) continue;
    const std::string name = translate(own, &TensorName::own, &TensorName::checkpoint);
    TensorView view = tensor.view;
    const bool turned = name.find("self_attn.q_proj") != std::string::npos ||
                        name.find("self_attn.k_proj") != std::string::npos;
    const auto head_rows = static_cast<uint64_t>(config.head_dim);
    // Of another number of rows it is refused when the model is made.
    if (pairs && turned && view.shape.front() % head_rows == 0) view.head_rows = head_rows;
    views_.emplace(name, std::move(view));
  }
}

const TensorView* GgufWeights::find(std::string_view name) const {
  const auto place = views_.find(name);
  if (place != views_.end()) return &place->second;
  const auto unread = file_.tensors().find(own_name(name));
  if (unread != file_.tensors().end() && !unread->second.usable)
    throw bad_input("{}: type is {}; supported are {}", unread->second.view.origin, unread->second.type,
                    Gguf::readable_types());
  return nullptr;
}

std::string GgufWeights::own_name(std::string_view name) const {
  const std::string own = translate(name, &TensorName::checkpoint, &TensorName::own);
  return own.empty() ? std::string(name) : own;
}

}  // namespace kvcodec
