#include "formats/models/layer_state.hpp"

#include <algorithm>
#include <cstring>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec {

/// Names and shapes of a layer's tensors.
static std::vector<StateTensor> expected(const ModelConfig& config, int layer) {
  const DeltaLayers& delta = config.delta;
  const auto name = [&](const char* what) { return fmt::format("layers.{}.{}.0", layer, what); };
  std::vector<StateTensor> tensors = {
      {.name = name("conv_states"), .shape = {as_size(delta.mixed_width()), as_size(delta.kernel)}}};
  if (!delta.only_convolve())
    tensors.push_back(
        {.name = name("recurrent_states"),
         .shape = {as_size(delta.value_heads), as_size(delta.key_dim), as_size(delta.value_dim)}});
  return tensors;
}

/// Calls each(tensor, element of it, place in a state) for all numbers of a state.
template <class Each>
static void for_each_place(const DeltaLayers& delta, const Each& each) {
  const size_t width = as_size(delta.mixed_width()), kernel = as_size(delta.kernel),
               dim = as_size(delta.value_dim), keys = as_size(delta.key_heads),
               of_key = as_size(delta.value_heads) / keys, first = as_size(2 * delta.key_width()),
               matrix = as_size(delta.key_dim) * dim;
  // Where the model's weights have the value head that has that place in caches of transformers.
  const auto head_at = [&](size_t place) {
    return delta.tiled ? place % of_key * keys + place / of_key : place;
  };
  for (size_t c = 0; c < width; ++c) {
    const size_t channel = c < first ? c : first + head_at((c - first) / dim) * dim + (c - first) % dim;
    for (size_t t = 1; t < kernel; ++t) each(size_t{0}, c * kernel + t, (t - 1) * width + channel);
  }
  for (size_t head = 0; head < keys * of_key; ++head)
    for (size_t i = 0; i < matrix; ++i)
      each(size_t{1}, head * matrix + i, (kernel - 1) * width + head_at(head) * matrix + i);
}

static std::vector<float> floats_of(const StateTensor& tensor, const std::string& where) {
  const std::vector<std::byte> bytes = tensor.load();
  std::vector<float> values(bytes.size() / size_of(tensor.type));
  if (tensor.type == DType::f32)
    std::memcpy(values.data(), bytes.data(), bytes.size());
  else
    widen(tensor.type, {reinterpret_cast<const uint16_t*>(bytes.data()), values.size()}, values);
  if (const auto bad = find_non_finite(values))
    throw bad_input("{}: element {} of {} is not finite", where, *bad, tensor.name);
  return values;
}

std::vector<StateTensor> tensors_of_state(const ModelConfig& config, int layer,
                                          std::span<const float> state) {
  std::vector<StateTensor> tensors = expected(config, layer);
  std::vector<std::byte> bytes[2];
  for (size_t i = 0; i < tensors.size(); ++i) bytes[i].resize(tensors[i].bytes());
  for_each_place(config.delta, [&](size_t tensor, size_t at, size_t place) {
    std::memcpy(&bytes[tensor][at * sizeof(float)], &state[place], sizeof(float));
  });
  for (size_t i = 0; i < tensors.size(); ++i)
    tensors[i] = state_tensor(tensors[i].name, DType::f32, tensors[i].shape, std::move(bytes[i]));
  return tensors;
}

std::vector<std::vector<float>> layer_states(const ModelConfig& config, std::span<const StateTensor> tensors,
                                             const std::string& where) {
  std::vector<std::vector<float>> states(as_size(config.num_layers));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_delta(layer)) continue;
    std::vector<std::vector<float>> values;
    for (const StateTensor& wanted : expected(config, layer)) {
      const auto found = std::ranges::find(tensors, wanted.name, &StateTensor::name);
      if (found == tensors.end())
        throw bad_input(
            "{}: has no {}, the state of a layer without keys and values: the model cannot go on from it",
            where, wanted.name);
      const bool floats =
          found->type == DType::f32 || found->type == DType::f16 || found->type == DType::bf16;
      if (found->shape != wanted.shape || !floats)
        throw bad_input("{}: {} is {} [{}]; the model has floats of [{}]", where, wanted.name,
                        name_of(found->type), fmt::join(found->shape, ", "), fmt::join(wanted.shape, ", "));
      values.push_back(floats_of(*found, where));
    }
    std::vector<float>& state = states[as_size(layer)];
    state.resize(config.delta.state_size());
    for_each_place(config.delta,
                   [&](size_t tensor, size_t at, size_t place) { state[place] = values[tensor][at]; });
  }
  return states;
}

}  // namespace kvcodec
