#include "formats/models/key_rope.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

using Kind = RopeScaling::Kind;
using Json = nlohmann::json;

std::vector<int> layers_with(const ModelConfig& config, LayerRope kind) {
  std::vector<int> layers;
  for (int layer = 0; layer < config.num_layers; ++layer)
    if (config.rope_of(layer) == kind) layers.push_back(layer);
  return layers;
}

/// Adds values that config.json may omit because they can be computed, or may give elsewhere.
void add_computed(const RopeScaling& scaling, Json& text) {
  if (scaling.kind == Kind::proportional)
    text["rope_type"] = "proportional", text["partial_rotary_factor"] = scaling.share;
  if (scaling.kind != Kind::llama3 && scaling.kind != Kind::yarn && scaling.kind != Kind::longrope) return;
  text["factor"] = scaling.factor;
  text["original_max_position_embeddings"] = scaling.original_positions;
  if (scaling.kind == Kind::llama3) return;
  text["attention_factor"] = scaling.attention_factor;
  if (scaling.kind == Kind::longrope) return;
  text["beta_fast"] = scaling.fast_turns, text["beta_slow"] = scaling.slow_turns;
  text["truncate"] = scaling.whole_bounds;
}

void set_layers(const JsonFields& fields, const char* name, LayerRope kind, ModelConfig& config) {
  const Json* list = fields.find(name);
  const auto is_layer = [&](const Json& value) {
    return value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(config.num_layers);
  };
  if (!list || !list->is_array() || !std::ranges::all_of(*list, is_layer))
    throw bad_input("{} must be a list of layers in 0..{}", name, config.num_layers - 1);
  config.layer_rope.resize(static_cast<size_t>(config.num_layers), LayerRope::usual);
  for (const Json& layer : *list) config.layer_rope[layer.get<size_t>()] = kind;
}

void read(const Json& object, ModelConfig& config) {
  const JsonFields fields(object);
  config.rope = families::rope_of(fields, &object, config.rope.theta);
  config.rope.dims = families::int_of(fields, "rotary_dims", 0);
  config.rope.first = families::int_of(fields, "first_rotary_dim", 0);
  if (fields.find("layers_without_rope")) set_layers(fields, "layers_without_rope", LayerRope::none, config);
  if (const Json* local = fields.find("local")) {
    if (!local->is_object()) throw bad_input("local is {}; it must be an object", printable(local->dump()));
    const JsonFields own(*local);
    config.local_rope.theta = own.need_number("rope_theta");
    set_layers(own, "layers", LayerRope::local, config);
  }
  check_ropes(config);
}

}  // namespace

std::string describe_rope(const ModelConfig& config, const Json* object) {
  Json text = Json::object();
  if (object && config.rope.scaling.kind != Kind::none) text = *object;
  add_computed(config.rope.scaling, text);
  if (config.rope.dims > 0) text["rotary_dims"] = config.rope.dims;
  if (config.rope.first > 0) text["first_rotary_dim"] = config.rope.first;
  if (const auto none = layers_with(config, LayerRope::none); !none.empty())
    text["layers_without_rope"] = none;
  if (const auto local = layers_with(config, LayerRope::local); !local.empty())
    text["local"] = {{"rope_theta", config.local_rope.theta}, {"layers", local}};
  return text.empty() ? "" : text.dump(-1, ' ', true);
}

void stretch_context(ModelConfig& config) {
  const RopeScaling& scaling = config.rope.scaling;
  // If layers differ (Gemma 3), the stored context is that of the layers that are scaled.
  const bool is_said = !layers_with(config, LayerRope::local).empty();
  if (config.max_positions == 0 || is_said) return;
  double before = config.max_positions;
  if (scaling.kind == Kind::yarn)
    before = scaling.original_positions;
  else if (scaling.kind != Kind::linear)
    return;
  constexpr double kMaxContext = std::numeric_limits<int>::max();
  config.max_positions =
      std::max(config.max_positions, static_cast<int>(std::min(scaling.factor * before, kMaxContext)));
}

void read_rope_description(const std::string& text, ModelConfig& config) {
  if (text.empty()) return;
  const Json object = parse_json_object(text, "rope_scaling");
  with_context("rope_scaling", [&] { read(object, config); });
}

static ModelConfig rope_config(const ModelInfo& model) {
  ModelConfig config;
  config.num_layers = model.num_layers;
  config.head_dim = model.head_dim;
  config.rope.theta = model.rope_theta;
  if (model.head_dim % 2 != 0)
    throw bad_input("heads of {} dimensions have no pairs to turn", model.head_dim);
  read_rope_description(model.rope_scaling, config);
  std::array<int, kLayerRopes> dims = {};
  for (int layer = 0; layer < model.num_layers; ++layer) {
    const int dim = model.layer_shape(layer).key_dim;
    int& of_kind = dims[static_cast<size_t>(config.rope_of(layer))];
    if (dim != 0 && of_kind != 0 && dim != of_kind)
      throw bad_input("the file does not say how keys of several dimensions were turned");
    if (dim != 0) of_kind = dim;
  }
  const int usual = dims[static_cast<size_t>(LayerRope::usual)],
            local = dims[static_cast<size_t>(LayerRope::local)];
  if (usual != 0) config.head_dim = usual;
  if (local != 0 && local != config.head_dim) config.local_head_dim = local;
  check_ropes(config);
  return config;
}

std::optional<PairHabits> pair_habits(std::string_view family) {
  for (const families::Family& known : families::all_families())
    if (known.model_type == family)
      return PairHabits{.in_llama_cpp = known.pairs_neighbours || known.gguf.pairs_neighbours,
                        .in_weights = known.pairs_neighbours};
  return std::nullopt;
}

std::string_view family_of_architecture(std::string_view architecture) {
  for (const families::Family& known : families::all_families())
    if (!architecture.empty() && known.gguf.architecture == architecture) return known.model_type;
  return "";
}

KeyRope key_rope_of(const ModelInfo& model) {
  if (model.key_state != "post-rope")
    return KeyRope::not_yet(
        fmt::format("they are from before the rotary embedding (key_state is {})", model.key_state));
  if (model.rope_theta == 0)
    return KeyRope::unknown("the file does not say how they were turned (rope_theta is 0)");
  try {
    return KeyRope::of(rope_config(model));
  } catch (const Error& error) {
    return KeyRope::unknown(error.what());
  }
}

}  // namespace kvcodec
