#include "formats/models/gguf_model.hpp"

#include <algorithm>
#include <limits>

#include "formats/models/family.hpp"
#include "formats/models/key_rope.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::gguf {

int Fields::as_size(std::string_view name, int64_t value) const {
  if (value < 0 || value > std::numeric_limits<int>::max())
    throw bad_input("{} is {}; it must be in 0..{}", key(name), value, std::numeric_limits<int>::max());
  return static_cast<int>(value);
}

int Fields::need_size(std::string_view name) const { return as_size(name, file_.need_int(key(name))); }

int Fields::size_or(std::string_view name, int otherwise) const {
  const auto value = file_.get_int(key(name));
  return value ? as_size(name, *value) : otherwise;
}

int Fields::need_size_of_layers(std::string_view name) const {
  if (!file_.is_array(key(name))) return need_size(name);
  std::vector<int64_t> values = *file_.get_ints(key(name));
  std::erase(values, 0);  // of layers that have none
  if (values.empty() || std::ranges::any_of(values, [&](int64_t v) { return v != values[0]; }))
    throw bad_input("{} differs by layer; one value for all layers is supported", key(name));
  return as_size(name, values[0]);
}

void Fields::must_be(std::string_view name, double value) const {
  if (const auto said = get_number(name); said && *said != value)
    throw bad_input("{} is {}; only {} is supported", key(name), *said, value);
}

void set_window(Reading& reading, int otherwise) {
  const int window = reading.fields.size_or("attention.sliding_window", otherwise);
  reading.config.window.assign(static_cast<size_t>(reading.config.num_layers), window);
}

std::vector<bool> sliding_layers(const Reading& reading, int period) {
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  const Fields& fields = reading.fields;
  const auto layers = static_cast<size_t>(reading.config.num_layers);
  if (fields.file().is_array(fields.key(kPattern))) {
    std::vector<bool> slides = *fields.file().get_flags(fields.key(kPattern));
    if (slides.size() != layers)
      throw bad_input("{} has {} entries; there are {} layers", fields.key(kPattern), slides.size(), layers);
    return slides;
  }
  const auto every = static_cast<size_t>(fields.size_or(kPattern, period));
  std::vector<bool> slides;
  slides.reserve(layers);
  for (size_t layer = 0; layer < layers; ++layer) slides.push_back(every == 0 || (layer + 1) % every != 0);
  return slides;
}

void set_windows(Reading& reading, const std::vector<bool>& slides, int window) {
  for (const bool layer_slides : slides) reading.config.window.push_back(layer_slides ? window : 0);
}

void set_no_window(Reading& reading) {
  reading.config.window.assign(static_cast<size_t>(reading.config.num_layers), 0);
}

}  // namespace kvcodec::gguf

namespace kvcodec {
namespace {

using families::Family;
using gguf::Fields;

// The rotary embedding -------------------------------------------------------------------------------

using Json = nlohmann::json;

// Divisors of frequencies: those of llama3's scaling, and those of longrope for short and long documents.
constexpr const char *kDivisors = "rope_freqs.weight", *kShort = "rope_factors_short.weight",
                     *kLong = "rope_factors_long.weight";

std::vector<float> read_divisors(const Fields& fields, const char* name, int dims) {
  const Gguf::Tensor& tensor = fields.file().tensors().find(name)->second;
  const uint64_t wanted = static_cast<uint64_t>(dims) / 2;
  if (tensor.usable != TensorType::f32 || tensor.view.shape != std::vector{wanted})
    throw bad_input("tensor '{}': is {} [{}]; it must be F32 [{}]", name, tensor.type,
                    fmt::join(tensor.view.shape, ", "), wanted);
  return read_floats(tensor.view);
}

void refuse_two(const Fields& fields, const std::string& type) {
  std::vector<std::string> kinds;
  if (type == "linear" || type == "yarn") kinds.push_back(fields.key("rope.scaling.factor"));
  for (const char* name : {kDivisors, kShort})
    if (fields.has_tensor(name)) kinds.push_back(fmt::format("tensor '{}'", name));
  if (kinds.size() > 1)
    throw bad_input("{} are both there; only one kind of scaling is supported", fmt::join(kinds, " and "));
}

/// The scaling in the form of config.json, or null.
Json scaling_of(const Fields& fields, int dims, const ModelConfig& config) {
  const auto linear = fields.get_number("rope.scale_linear");  // the name in older files
  const double said = fields.number_or("rope.scaling.factor", linear.value_or(1));
  const double factor = said == 0 ? 1 : said;  // 0 counts as absent
  std::string type = fields.get_string("rope.scaling.type").value_or(factor == 1 ? "none" : "linear");
  if (type != "none" && type != "linear" && type != "yarn" && type != "longrope")
    throw bad_input("{} is '{}'; supported are 'none', 'linear', 'yarn' and 'longrope'",
                    fields.key("rope.scaling.type"), printable(type));
  if (type == "linear" && factor == 1) type = "none";
  refuse_two(fields, type);
  const bool has_short = fields.has_tensor(kShort), has_long = fields.has_tensor(kLong);
  if (has_short != has_long || (type == "longrope" && !has_short))
    throw bad_input("tensor '{}' is missing; rope scaling of type 'longrope' has two",
                    has_short ? kLong : kShort);
  const double original = fields.number_or("rope.scaling.original_context_length", config.max_positions);
  if (has_short)
    return {{"rope_type", "longrope"},
            {"short_factor", read_divisors(fields, kShort, dims)},
            {"long_factor", read_divisors(fields, kLong, dims)},
            {"original_max_position_embeddings", original},
            {"factor", config.max_positions > 0 ? config.max_positions / original : 1},
            {"attention_factor", fields.number_or("rope.scaling.attn_factor", 1)}};
  if (fields.has_tensor(kDivisors))
    return {{"rope_type", "divided"}, {"divisors", read_divisors(fields, kDivisors, dims)}};
  if (type == "linear") return {{"rope_type", "linear"}, {"factor", factor}};
  if (type != "yarn") return {};
  // Only the usual factor of attention is supported; programs differ in their use of keys for it.
  for (const char* name : {"attn_factor", "yarn_attn_factor", "yarn_ext_factor"})
    fields.must_be(fmt::format("rope.scaling.{}", name), 1);
  fields.must_be("rope.scaling.yarn_log_multiplier", 0);
  Json yarn = {{"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", original}};
  for (const char* name : {"beta_fast", "beta_slow"})
    if (const auto turns = fields.get_number(fmt::format("rope.scaling.yarn_{}", name))) yarn[name] = *turns;
  return yarn;
}

/// Reads the rotary embedding of keys and of the tensors that hold a number for each frequency. Returns its scaling in the form of
/// config.json, or null.
Json read_rope(const Fields& fields, bool may_be_partial, ModelConfig& config) {
  constexpr const char* kDims = "rope.dimension_count";
  const int dims = fields.size_or(kDims, config.head_dim);
  if (dims != config.head_dim && !may_be_partial)
    throw bad_input("{} is {}; only the length of a key ({}) is supported", fields.key(kDims), dims,
                    config.head_dim);
  if (dims < 1) throw bad_input("{} is {}; it must be positive", fields.key(kDims), dims);
  Json scaling = scaling_of(fields, dims, config);
  constexpr double kTheta = 10000;  // llama.cpp's default
  config.rope = families::rope_of(JsonFields(scaling), scaling.is_null() ? nullptr : &scaling,
                                  fields.number_or("rope.freq_base", kTheta));
  config.rope.dims = dims == config.head_dim ? 0 : dims;
  return scaling;
}

// The whole ------------------------------------------------------------------------------------------

const Family& family_of(const Gguf& file) {
  const std::string name = file.need_string("general.architecture");
  std::vector<std::string_view> known;
  for (const Family& family : families::all_families()) {
    if (family.gguf.architecture.empty()) continue;
    if (name == family.gguf.architecture) return family;
    known.push_back(family.gguf.architecture);
  }
  throw bad_input("architecture is '{}', which is not supported; supported are {}", printable(name),
                  families::listed(known));
}

/// The names that most architectures have for their tensors.
TensorNames usual_names() {
  TensorNames names;
  names.prefix = "";
  names.embedding = "token_embd", names.final_norm = "output_norm", names.head = "output";
  names.layers = "blk";
  names.attention_norm = "attn_norm", names.mlp_norm = "ffn_norm";
  names.query = "attn_q", names.key = "attn_k", names.value = "attn_v", names.output = "attn_output";
  names.query_norm = "attn_q_norm", names.key_norm = "attn_k_norm";
  names.gate = "ffn_gate", names.up = "ffn_up", names.down = "ffn_down";
  names.router = "ffn_gate_inp";
  names.expert_gate = "ffn_gate_exps", names.expert_up = "ffn_up_exps", names.expert_down = "ffn_down_exps";
  return names;
}

void read_sizes(const Fields& fields, const Family& family, ModelConfig& config) {
  config.num_layers = fields.need_size("block_count");
  config.hidden_size = fields.need_size("embedding_length");
  // A model whose layers all have experts need not give the width without experts.
  const bool only_experts = !fields.has("feed_forward_length") && family.gguf.may_have_experts;
  config.intermediate_size = only_experts ? fields.need_size("expert_feed_forward_length")
                                          : fields.need_size_of_layers("feed_forward_length");
  config.max_positions = fields.size_or("context_length", 0);
  // Checked before lists with an entry per layer are made.
  if (config.num_layers < 1 || config.num_layers > kMaxLayers)
    throw bad_input("{} is {}; it must be in 1..{}", fields.key("block_count"), config.num_layers,
                    kMaxLayers);
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
  if (const int value = fields.size_or("attention.value_length", config.head_dim); value != config.head_dim)
    throw bad_input("{} is {}; only the length of a key ({}) is supported",
                    fields.key("attention.value_length"), value, config.head_dim);
}

void read_mixture(const Fields& fields, const Family& family, ModelConfig& config) {
  Mixture& mixture = config.mixture;
  mixture.experts = fields.size_or("expert_count", 0);
  if (mixture.experts == 0) return;
  if (!family.gguf.may_have_experts)
    throw bad_input("{} is {}; {} models that are supported have no experts", fields.key("expert_count"),
                    mixture.experts, family.gguf.architecture);
  mixture.chosen = fields.need_size("expert_used_count");
  mixture.width = fields.size_or("expert_feed_forward_length", config.intermediate_size);
  for (int layer = 0; layer < config.num_layers; ++layer)
    mixture.layers.push_back(fields.has_tensor(fmt::format("blk.{}.ffn_gate_inp.weight", layer)));
}

/// Reads settings that the presence of tensors implies.
void read_parts(const Fields& fields, const Family& family, ModelConfig& config) {
  const auto embedding = fields.file().tensors().find("token_embd.weight");
  if (embedding == fields.file().tensors().end()) throw bad_input("tensor 'token_embd.weight' is missing");
  const uint64_t rows = embedding->second.view.shape.front();
  if (rows > static_cast<uint64_t>(std::numeric_limits<int>::max()))
    throw bad_input("tensor 'token_embd.weight': has {} rows; that many tokens are not supported", rows);
  config.vocabulary_size = static_cast<int>(rows);
  config.tied_embeddings = !fields.has_tensor("output.weight");
  // If rows of q and k are stored in another order, they would have to be separated from those of v.
  if (fields.has_tensor("blk.0.attn_qkv.weight") && !family.gguf.pairs_neighbours)
    config.names.fused_qkv = "attn_qkv";
  config.qkv_bias =
      fields.has_tensor(config.names.fused_qkv.empty() ? "blk.0.attn_q.bias" : "blk.0.attn_qkv.bias");
  config.output_bias = fields.has_tensor("blk.0.attn_output.bias");
  config.mlp_bias = fields.has_tensor("blk.0.ffn_up.bias");
}

ModelDescription describe(const Gguf& file) {
  const Family& family = family_of(file);
  const Fields fields(file, family.gguf.architecture);
  ModelDescription description;
  ModelConfig& config = description.config;
  if (!fields.get_flag("attention.causal").value_or(true))
    families::refuse_bidirectional(fields.key("attention.causal"), "false");
  config.family = family.model_type;
  config.names = usual_names();
  config.activation = family.activation;
  read_sizes(fields, family, config);
  read_heads(fields, config);
  const Json scaling = read_rope(fields, family.may_be_partial, config);
  read_mixture(fields, family, config);
  read_parts(fields, family, config);
  if (family.parts) family.parts(config);
  config.norm_epsilon = fields.need_number(
      config.norm == NormKind::layer ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon");
  gguf::Reading reading{fields, config, description.notes};
  if (family.gguf.describe) family.gguf.describe(reading);
  if (config.window.empty()) set_window(reading, 0);
  check(config);
  stretch_context(config);
  description.rope_scaling = describe_rope(config, scaling.is_null() ? nullptr : &scaling);
  return description;
}

}  // namespace

ModelDescription describe_model(const Gguf& file) {
  return with_context(file.name(), [&] { return describe(file); });
}

GgufWeights::GgufWeights(const Gguf& file, const ModelConfig& config) : file_(file) {
  if (!family_of(file).gguf.pairs_neighbours) return;
  const auto head_rows = static_cast<uint64_t>(config.head_dim);
  for (int layer = 0; layer < config.num_layers; ++layer)
    for (const std::string_view part : {config.names.query, config.names.key})
      for (const char* const kind : {"weight", "bias"}) {
        const auto place = file.tensors().find(fmt::format("blk.{}.{}.{}", layer, part, kind));
        // A tensor with another number of rows is refused when the model is made.
        if (place == file.tensors().end() || place->second.view.shape.front() % head_rows != 0) continue;
        TensorView view = place->second.view;
        view.head_rows = head_rows;
        turned_.emplace(place->first, std::move(view));
      }
}

const TensorView* GgufWeights::find(std::string_view name) const {
  const auto place = file_.tensors().find(name);
  if (place == file_.tensors().end()) return nullptr;
  const Gguf::Tensor& tensor = place->second;
  if (!tensor.usable)
    throw bad_input("{}: type is {}; supported are {}", tensor.view.origin, tensor.type,
                    Gguf::readable_types());
  const auto turned = turned_.find(name);
  return turned == turned_.end() ? &tensor.view : &turned->second;
}

void GgufWeights::refuse_others(const TensorSet& found) const {
  for (const auto& [name, tensor] : file_.tensors())
    if (!found.contains(name) && name != kDivisors && name != kShort && name != kLong)
      throw bad_input("{} is there; {} models that are supported have none", tensor.view.origin,
                      family_of(file_).gguf.architecture);
}

}  // namespace kvcodec
