#include "lib/model/llama_weights.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/model/linear.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

/// The name of the first tensor that is the head's own; empty: it has but the embedding.
std::string first_of_head(const ModelConfig& config) {
  if (config.tied_embeddings && !config.head_bias) return "";
  return fmt::format("{}.{}", config.names.head, config.tied_embeddings ? "bias" : "weight");
}

/// Looks tensors up and checks their shapes.
class Loader {
 public:
  Loader(const ModelConfig& config, const WeightSource& source)
      : whole_(config), config_(config), names_(config.names), source_(source), prefix_(names_.prefix) {
    const std::string embedding = fmt::format("{}.weight", names_.embedding);
    // Checkpoints of the bare model (without the output matrix) lack the prefix; others hold the model as the part that reads text.
    for (const char* const other : {"", "model.language_model.", "language_model.model."})
      if (!source.find(prefix_ + embedding) && source.find(other + embedding)) prefix_ = other;
  }

  const TensorView& tensor(const std::string& tail, const std::vector<uint64_t>& shape) const {
    const std::string name = prefix_ + tail;
    found_.insert(name);
    return get_tensor(source_, name, shape);
  }

  const TensorView& matrix(const std::string& tail, int rows, int cols) const {
    return tensor(tail, {as_size(rows), as_size(cols)});
  }

  Norm norm(const std::string& at, std::string_view name, int size) const {
    Norm norm;
    if (name.empty()) return norm;
    norm.weight = vector(fmt::format("{}{}.weight", at, name), size);
    if (config_.norm_adds_one)
      for (float& weight : norm.weight) weight += 1;
    if (config_.norm == NormKind::layer) norm.bias = vector(fmt::format("{}{}.bias", at, name), size);
    return norm;
  }

  LlamaLayer layer(int index) {
    config_ = whole_.of_layer(index);
    const std::string at = fmt::format("{}.{}.", names_.layers, index);
    const int hidden = config_.hidden_size;
    LlamaLayer layer;
    layer.attention_norm = norm(at, names_.attention_norm, hidden);
    layer.attention_out_norm = norm(at, names_.attention_out_norm, hidden);
    layer.mlp_norm = norm(at, names_.mlp_norm, hidden);
    layer.mlp_out_norm = norm(at, names_.mlp_out_norm, hidden);
    if (config_.is_delta(index)) {
      load_delta(at, layer);
      if (config_.has_mixture(index))
        load_experts(at, layer);
      else
        layer.mlp = mlp(at);
      return layer;
    }
    const bool cached = whole_.has_cache(index);
    if (config_.is_latent())
      load_latent(at, layer);
    else if (cached)
      load_projections(at, config_.keys_make_values && config_.rope_of(index) != LayerRope::local, layer);
    else
      layer.query = linear(at, names_.query, config_.query_width(), hidden, config_.qkv_bias);
    const int heads_width =
        config_.is_latent() ? config_.num_q_heads * config_.latent.value_dim : config_.query_width();
    layer.output = linear(at, names_.output, hidden, heads_width, config_.output_bias);
    if (config_.qk_norm != QkNorm::none) {
      const bool whole = config_.qk_norm == QkNorm::whole;
      layer.query_norm = norm(at, names_.query_norm, whole ? config_.query_width() : config_.head_dim);
      if (cached) layer.key_norm = norm(at, names_.key_norm, whole ? config_.key_width() : config_.head_dim);
    }
    if (config_.value_norm && cached) layer.value_norm.weight.assign(as_size(config_.head_dim), 1);
    if (config_.token_inputs.width > 0) load_token_inputs(at, index, layer);
    if (!names_.layer_scale.empty()) layer.scale = vector(fmt::format("{}{}", at, names_.layer_scale), 1)[0];
    if (!names_.sinks.empty())
      layer.sinks = vector(fmt::format("{}{}", at, names_.sinks), config_.num_q_heads);
    if (config_.has_mixture(index)) load_experts(at, layer);
    if (!config_.has_mixture(index) || config_.mixture.beside_mlp) layer.mlp = mlp(at);
    return layer;
  }

  std::optional<Linear> head(const TensorView& embedding) {
    // A model whose head's own tensors are not there has none.
    if (const std::string first = first_of_head(config_); !first.empty() && !source_.find(first))
      return std::nullopt;
    prefix_ = "";
    Linear head{embedding, {}};
    const std::string at = fmt::format("{}.", names_.head);
    if (!config_.tied_embeddings)
      head.weight = matrix(at + "weight", config_.vocabulary_size, config_.hidden_size);
    if (config_.head_bias) head.bias = vector(at + "bias", config_.vocabulary_size);
    return head;
  }

  /// All that has been looked up.
  const TensorSet& found() const { return found_; }

 private:
  std::vector<float> vector(const std::string& tail, int size) const {
    return read_floats(tensor(tail, {as_size(size)}));
  }

  Linear linear(const std::string& at, std::string_view name, int outputs, int inputs, bool bias) const {
    const std::string weight = fmt::format("{}{}.weight", at, name);
    const uint64_t rows = as_size(outputs), columns = as_size(inputs);
    Linear layer{names_.transposed ? matrix_of(matrix(weight, inputs, outputs), rows, columns, {0, 1, rows})
                                   : matrix(weight, outputs, inputs),
                 {}};
    if (bias) layer.bias = vector(fmt::format("{}{}.bias", at, name), outputs);
    return layer;
  }

  /// Some outputs of a linear layer.
  static Linear part(const Linear& whole, const RowRuns& rows) {
    Linear layer{rows_of(whole.weight, rows), {}};
    for (uint64_t i = 0; i < rows.count && !whole.bias.empty(); ++i)
      layer.bias.push_back(whole.bias[rows.first + i / rows.run * rows.apart + i % rows.run]);
    return layer;
  }

  /// `count` consecutive outputs.
  static Linear part(const Linear& whole, int first, int count) {
    return part(whole, {as_size(first), as_size(count), as_size(count), as_size(count)});
  }

  void load_token_inputs(const std::string& at, int index, LlamaLayer& layer) const {
    const int width = config_.token_inputs.width, hidden = config_.hidden_size;
    const Linear all = linear("", names_.token_projection, config_.num_layers * width, hidden, false);
    layer.token_projection = part(all, index * width, width);
    layer.token_gate = linear(at, names_.token_gate, width, hidden, false);
    layer.token_output = linear(at, names_.token_output, hidden, width, false);
    layer.token_output_norm = norm(at, names_.token_output_norm, hidden);
  }

  void load_projections(const std::string& at, bool keys_make_values, LlamaLayer& layer) const {
    const int hidden = config_.hidden_size, query = config_.query_width(), key = config_.key_width();
    if (names_.fused_qkv.empty()) {
      if (config_.output_gate) {
        const Linear both = linear(at, names_.query, 2 * query, hidden, config_.qkv_bias);
        const uint64_t head = as_size(config_.head_dim), all = as_size(query);
        layer.query = part(both, {0, all, head, 2 * head});
        layer.output_gate = part(both, {head, all, head, 2 * head});
      } else {
        layer.query = linear(at, names_.query, query, hidden, config_.qkv_bias);
      }
      layer.key = linear(at, names_.key, key, hidden, config_.qkv_bias);
      if (!keys_make_values) layer.value = linear(at, names_.value, key, hidden, config_.qkv_bias);
      return;
    }
    const Linear fused = linear(at, names_.fused_qkv, query + 2 * key, hidden, config_.qkv_bias);
    const bool in_parts = names_.fused_qkv_order == FusedQkv::parts;
    const uint64_t head = as_size(config_.head_dim), q = as_size(query), k = as_size(key);
    layer.query = part(fused, {0, q, in_parts ? q : head, 3 * head});
    layer.key = part(fused, {in_parts ? q : head, k, in_parts ? k : head, 3 * head});
    layer.value = part(fused, {in_parts ? q + k : 2 * head, k, in_parts ? k : head, 3 * head});
  }

  void load_delta(const std::string& at, LlamaLayer& layer) const {
    const DeltaLayers& sizes = config_.delta;
    const std::string own = fmt::format("{}{}", at, names_.delta);
    const int hidden = config_.hidden_size, keys = sizes.key_width(), values = sizes.value_width(),
              heads = sizes.value_heads;
    DeltaNet& delta = layer.delta;
    const DeltaNames& names = names_.of_delta;
    std::vector<uint64_t> kernel = {as_size(sizes.mixed_width()), 1, as_size(sizes.kernel)};
    if (names.flat_kernel) kernel.erase(kernel.begin() + 1);
    delta.kernel = read_floats(tensor(fmt::format("{}{}.weight", own, names.kernel), kernel));
    layer.output = linear(own, names.output, hidden, values, sizes.biases);
    if (sizes.only_convolve()) {
      const Linear mixed = linear(own, names.mixed, 3 * values, hidden, sizes.biases);
      delta.query = part(mixed, 0, values), delta.gate = part(mixed, values, values);
      delta.value = part(mixed, 2 * values, values);
      if (sizes.biases) delta.kernel_bias = vector(fmt::format("{}{}.bias", own, names.kernel), values);
      return;
    }
    const uint64_t groups = as_size(sizes.key_heads), key = as_size(sizes.key_dim),
                   value = as_size(values) / groups, of_group = 2 * (key + value),
                   number = as_size(heads) / groups;
    if (!names.fused.empty()) {
      const Linear mixed = linear(own, names.fused, 2 * keys + 2 * values, hidden, false);
      delta.query = part(mixed, {0, groups * key, key, of_group});
      delta.key = part(mixed, {key, groups * key, key, of_group});
      delta.value = part(mixed, {2 * key, groups * value, value, of_group});
      delta.gate = part(mixed, {2 * key + value, groups * value, value, of_group});
    } else {
      const Linear mixed = linear(own, names.mixed, sizes.mixed_width(), hidden, false);
      delta.query = part(mixed, 0, keys), delta.key = part(mixed, keys, keys);
      delta.value = part(mixed, 2 * keys, values);
      delta.gate = linear(own, names.gate, values, hidden, false);
    }
    if (!names.numbers.empty()) {
      const Linear numbers = linear(own, names.numbers, 2 * heads, hidden, false);
      delta.beta = part(numbers, {0, groups * number, number, 2 * number});
      delta.decay = part(numbers, {number, groups * number, number, 2 * number});
    } else {
      delta.beta = linear(own, names.beta, heads, hidden, false);
      delta.decay = linear(own, names.decay, heads, hidden, false);
    }
    const bool rates = !names.negative_rate.empty();
    delta.decay_bias = vector(fmt::format("{}{}", own, names.decay_bias), heads);
    delta.decay_rate = vector(fmt::format("{}{}", own, rates ? names.negative_rate : names.rate_log), heads);
    for (float& rate : delta.decay_rate) rate = rates ? -rate : std::exp(rate);
    delta.norm = vector(fmt::format("{}{}.weight", own, names.norm), sizes.value_dim);
  }

  void load_latent(const std::string& at, LlamaLayer& layer) const {
    const LatentAttention& latent = config_.latent;
    const int hidden = config_.hidden_size, heads = config_.num_q_heads;
    if (latent.query_rank > 0) {
      layer.query_down = linear(at, names_.query_down, latent.query_rank, hidden, config_.qkv_bias);
      layer.query_down_norm = norm(at, names_.query_down_norm, latent.query_rank);
    }
    layer.query = linear(at, names_.query, heads * latent.query_dim(),
                         latent.query_rank > 0 ? latent.query_rank : hidden, false);
    layer.key = linear(at, names_.key, latent.rank + latent.turned_dim, hidden, config_.qkv_bias);
    layer.latent_norm = norm(at, names_.latent_norm, latent.rank);
    const int of_head = latent.plain_dim + latent.value_dim;
    const Linear up = linear(at, names_.latent_up, heads * of_head, latent.rank, false);
    for (int head = 0; head < heads; ++head) {
      layer.key_up.push_back(part(up, head * of_head, latent.plain_dim));
      layer.value_up.push_back(part(up, head * of_head + latent.plain_dim, latent.value_dim));
    }
  }

  Mlp mlp(const std::string& at) const {
    const int hidden = config_.hidden_size, width = config_.intermediate_size;
    Mlp mlp;
    if (!names_.fused_gate_up.empty()) {
      const Linear fused = linear(at, names_.fused_gate_up, 2 * width, hidden, config_.mlp_bias);
      mlp.gate = part(fused, 0, width);
      mlp.up = part(fused, width, width);
    } else {
      if (config_.gated_mlp) mlp.gate = linear(at, names_.gate, width, hidden, config_.mlp_bias);
      mlp.up = linear(at, names_.up, width, hidden, config_.mlp_bias);
    }
    mlp.down = linear(at, names_.down, hidden, width, config_.mlp_bias);
    return mlp;
  }

  void load_experts(const std::string& at, LlamaLayer& layer) const {
    const int hidden = config_.hidden_size, width = config_.mixture.width;
    const bool biases = config_.mixture.biases;
    layer.router = linear(at, names_.router, config_.mixture.experts, hidden, biases);
    if (!names_.router_correction.empty())
      layer.router_correction =
          vector(fmt::format("{}{}", at, names_.router_correction), config_.mixture.experts);
    if (config_.mixture.beside_mlp) {
      layer.beside_out_norm = norm(at, names_.beside_out_norm, hidden);
      layer.expert_norm = norm(at, names_.expert_norm, hidden);
      layer.expert_out_norm = norm(at, names_.expert_out_norm, hidden);
      layer.router_norm.weight = vector(fmt::format("{}{}", at, names_.router_scale), hidden);
      scale(layer.router_norm.weight, 1 / std::sqrt(static_cast<float>(hidden)));
      layer.expert_scales = vector(fmt::format("{}{}", at, names_.expert_scales), config_.mixture.experts);
    }
    const auto expert = [&](const std::string& name, int inner) {
      return Mlp{linear(name, names_.expert_gate, inner, hidden, biases),
                 linear(name, names_.expert_up, inner, hidden, biases),
                 linear(name, names_.expert_down, hidden, inner, biases)};
    };
    if (const int shared = config_.mixture.shared_width; shared > 0) {
      const auto suffixed = [&](std::string_view name) {
        return fmt::format("{}{}", name, names_.shared_suffix);
      };
      layer.shared_expert = names_.shared_suffix.empty()
                                ? expert(fmt::format("{}{}.", at, names_.shared_expert), shared)
                                : Mlp{linear(at, suffixed(names_.gate), shared, hidden, biases),
                                      linear(at, suffixed(names_.up), shared, hidden, biases),
                                      linear(at, suffixed(names_.down), hidden, shared, biases)};
    }
    if (!names_.shared_expert_gate.empty()) {
      const std::string name = fmt::format("{}{}.weight", at, names_.shared_expert_gate);
      const TensorView* const there = source_.find(prefix_ + name);
      layer.shared_expert_gate =
          there && there->shape.size() == 1 ? vector(name, hidden) : read_floats(matrix(name, 1, hidden));
    }
    if (!names_.stacked_gate_up.empty()) return load_transposed_experts(at, layer);
    if (names_.experts.empty()) {
      load_linears(at, names_.expert_gate, width, hidden, &Mlp::gate, layer);
      load_linears(at, names_.expert_up, width, hidden, &Mlp::up, layer);
      load_linears(at, names_.expert_down, hidden, width, &Mlp::down, layer);
      return;
    }
    for (int i = 0; i < config_.mixture.experts; ++i)
      layer.experts.push_back(expert(fmt::format("{}{}.{}.", at, names_.experts, i), width));
  }

  /// One linear layer of each expert, from a tensor of all.
  void load_linears(const std::string& at, std::string_view name, int outputs, int inputs, Linear Mlp::*place,
                    LlamaLayer& layer) const {
    const size_t experts = as_size(config_.mixture.experts), width = as_size(outputs);
    const TensorView& all = tensor(fmt::format("{}{}.weight", at, name), {experts, width, as_size(inputs)});
    std::vector<float> biases;
    if (config_.mixture.biases)
      biases = read_floats(tensor(fmt::format("{}{}.bias", at, name), {experts, width}));
    layer.experts.resize(experts);
    for (size_t i = 0; i < experts; ++i) {
      Linear& linear = layer.experts[i].*place;
      linear.weight = matrix_at(all, i);
      if (!biases.empty()) append_to(linear.bias, std::span(biases).subspan(i * width, width));
    }
  }

  static void load_float_experts(const TensorView& gate_up, const TensorView& down, LlamaLayer& layer) {
    const uint64_t experts = down.shape[0], width = down.shape[1], hidden = down.shape[2];
    for (const TensorView* const both : {&gate_up, &down})
      if (is_quantized(both->type))
        throw bad_input("{}: is quantized; float types are supported", both->origin);
    for (uint64_t i = 0; i < experts; ++i) {
      const uint64_t first = i * hidden * 2 * width;
      layer.experts.push_back({{matrix_of(gate_up, width, hidden, {first, 2, 2 * width}), {}},
                               {matrix_of(gate_up, width, hidden, {first + 1, 2, 2 * width}), {}},
                               {matrix_of(down, hidden, width, {i * width * hidden, 1, hidden}), {}}});
    }
  }

  /// The same of tensors that are not transposed, as quantized ones; halves: TensorNames::stacked_halves.
  static void load_packed_experts(const TensorView& gate_up, const TensorView& down, bool halves,
                                  LlamaLayer& layer) {
    const uint64_t experts = down.shape[0], width = down.shape[2], run = halves ? width : 1;
    for (uint64_t i = 0; i < experts; ++i) {
      const TensorView both = matrix_at(gate_up, i);
      layer.experts.push_back({{rows_of(both, {0, width, run, 2 * run}), {}},
                               {rows_of(both, {run, width, run, 2 * run}), {}},
                               {matrix_at(down, i), {}}});
    }
  }

  void load_transposed_experts(const std::string& at, LlamaLayer& layer) const {
    const uint64_t experts = as_size(config_.mixture.experts), hidden = as_size(config_.hidden_size),
                   width = as_size(config_.mixture.width);
    const auto name = [&](std::string_view tail) { return fmt::format("{}{}.{}", at, names_.experts, tail); };
    const TensorView* const packed = source_.find(prefix_ + name(names_.stacked_gate_up));
    if (names_.stacked_halves || (packed && is_quantized(packed->type)))
      load_packed_experts(tensor(name(names_.stacked_gate_up), {experts, 2 * width, hidden}),
                          tensor(name(names_.expert_down), {experts, hidden, width}), names_.stacked_halves,
                          layer);
    else
      load_float_experts(tensor(name(names_.stacked_gate_up), {experts, hidden, 2 * width}),
                         tensor(name(names_.expert_down), {experts, width, hidden}), layer);
    if (!config_.mixture.biases) return;
    const std::vector<float> inner =
        read_floats(tensor(name(fmt::format("{}_bias", names_.stacked_gate_up)), {experts, 2 * width}));
    const std::vector<float> outer =
        read_floats(tensor(name(fmt::format("{}_bias", names_.expert_down)), {experts, hidden}));
    for (uint64_t i = 0; i < experts; ++i) {
      Mlp& expert = layer.experts[i];
      for (uint64_t j = 0; j < width; ++j) {
        expert.gate.bias.push_back(inner[(i * width + j) * 2]);
        expert.up.bias.push_back(inner[(i * width + j) * 2 + 1]);
      }
      append_to(expert.down.bias, std::span(outer).subspan(i * hidden, hidden));
    }
  }

  const ModelConfig& whole_;
  ModelConfig config_;  // of the layer that is loaded
  const TensorNames& names_;
  const WeightSource& source_;
  std::string prefix_;
  mutable TensorSet found_;
};

}  // namespace

LlamaWeights load_weights(const ModelConfig& config, const WeightSource& source) {
  check(config);
  LlamaWeights weights;
  weights.config = config;
  weights.source = source.name();
  Loader load(config, source);
  weights.embedding = &load.matrix(fmt::format("{}.weight", config.names.embedding), config.vocabulary_size,
                                   config.hidden_size);
  if (!config.names.positions.empty())
    weights.positions = &load.matrix(fmt::format("{}.weight", config.names.positions), config.max_positions,
                                     config.hidden_size);
  for (int layer = 0; layer < config.num_layers; ++layer) weights.layers.push_back(load.layer(layer));
  if (const TokenInputs& inputs = config.token_inputs; inputs.width > 0) {
    weights.token_table = &load.matrix(fmt::format("{}.weight", config.names.token_table), inputs.vocabulary,
                                       config.num_layers * inputs.width);
    weights.token_norm = load.norm("", config.names.token_norm, inputs.width);
  }
  weights.final_norm = load.norm("", config.names.final_norm, config.hidden_size);
  weights.head = load.head(*weights.embedding);
  source.refuse_others(load.found());
  return weights;
}

/// The matrices that are multiplied as compute_in() says, of the first so many layers, and the head.
static std::vector<Linear*> matrices_of(LlamaWeights& weights, size_t layers, bool head) {
  std::vector<Linear*> found;
  const auto add = [&](Linear& linear) {
    if (!linear.empty()) found.push_back(&linear);
  };
  const auto add_mlp = [&](Mlp& mlp) { add(mlp.gate), add(mlp.up), add(mlp.down); };
  for (LlamaLayer& layer : std::span(weights.layers).first(layers)) {
    add(layer.query), add(layer.key), add(layer.value), add(layer.output), add(layer.query_down);
    add(layer.token_projection), add(layer.token_gate), add(layer.token_output);
    add(layer.output_gate), add(layer.delta.query), add(layer.delta.key), add(layer.delta.value);
    add(layer.delta.gate);
    for (Linear& linear : layer.value_up) add(linear);
    add_mlp(layer.mlp), add_mlp(layer.shared_expert);
    for (Mlp& expert : layer.experts) add_mlp(expert);
  }
  if (head && weights.head) add(*weights.head);
  return found;
}

void compute_in(LlamaWeights& weights, Compute compute, const KeepWeights& keep) {
  weights.compute = compute;
  const size_t layers = weights.layers.size();
  for (Linear* const linear : matrices_of(weights, layers, true)) {
    linear->compute = compute;
    linear->packed.clear();
  }
  if (compute == Compute::f32 && !packs_floats()) return;
  const std::vector<Linear*> kept =
      matrices_of(weights, keep.layers > 0 ? std::min(as_size(keep.layers), layers) : layers, keep.head);
  const uint64_t of_value = compute == Compute::bf16 ? sizeof(uint16_t) : sizeof(float);
  uint64_t bytes = 0;
  for (const Linear* const linear : kept)
    bytes = checked_add(bytes, checked_mul(checked_mul(linear->outputs(), linear->inputs()), of_value));
  if (bytes <= keep.bytes) pack(kept, compute == Compute::bf16 ? DType::bf16 : DType::f32);
}

const Linear& head_of(const LlamaWeights& weights) {
  if (!weights.head)
    throw bad_input("{}: tensor '{}' is missing; logits need it", weights.source,
                    first_of_head(weights.config));
  return *weights.head;
}

}  // namespace kvcodec
