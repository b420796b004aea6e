#include "formats/models/gguf_model.hpp"

#include <limits>

#include <nlohmann/json.hpp>

#include "formats/models/family.hpp"
#include "formats/models/rope_description.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

using families::Family;
using gguf::Fields;

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

/// What architectures mostly call their tensors.
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

void refuse_bidirectional(const Fields& fields) {
  constexpr const char* kCausal = "attention.causal";
  if (!fields.get_flag(kCausal).value_or(true)) families::refuse_bidirectional(fields.key(kCausal), false);
}

void read_sizes(const Fields& fields, const Family& family, ModelConfig& config) {
  config.num_layers = fields.need_size("block_count");
  config.hidden_size = fields.need_size("embedding_length");
  // A model whose layers all have experts may not say what it would be without.
  const bool only_experts = !fields.has("feed_forward_length") && family.gguf.may_have_experts;
  config.intermediate_size = only_experts ? fields.need_size("expert_feed_forward_length")
                                          : fields.need_size_of_layers("feed_forward_length");
  config.max_positions = fields.size_or("context_length", 0);
  // Before lists with an entry per layer are made.
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

/// What tensors say by being there.
void read_parts(const Fields& fields, const Family& family, ModelConfig& config) {
  const auto embedding = fields.file().tensors().find("token_embd.weight");
  if (embedding == fields.file().tensors().end()) throw bad_input("tensor 'token_embd.weight' is missing");
  const uint64_t rows = embedding->second.view.shape.front();
  if (rows > static_cast<uint64_t>(std::numeric_limits<int>::max()))
    throw bad_input("tensor 'token_embd.weight': has {} rows; that many tokens are not supported", rows);
  config.vocabulary_size = static_cast<int>(rows);
  config.tied_embeddings = !fields.has_tensor("output.weight");
  // Where rows of q and k are stored in another order, they would have to be told from those of v.
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
  refuse_bidirectional(fields);
  config.family = family.model_type;
  config.names = usual_names();
  config.activation = family.activation;
  read_sizes(fields, family, config);
  read_heads(fields, config);
  const std::string scaling = gguf::read_rope(fields, family.may_be_partial, config);
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
  const nlohmann::json said = scaling.empty() ? nlohmann::json() : nlohmann::json::parse(scaling);
  description.rope_scaling = describe_rope(config, scaling.empty() ? nullptr : &said);
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
        // Of another number of rows it is refused when the model is made.
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
    if (!found.contains(name) && !gguf::is_rope_tensor(name))
      throw bad_input("{} is there; {} models that are supported have none", tensor.view.origin,
                      family_of(file_).gguf.architecture);
}

}  // namespace kvcodec
