#include "formats/models/layer_state.hpp"

#include <algorithm>
#include <cstring>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {
namespace {

/// Names and shapes of a layer's tensors.
std::vector<StateTensor> expected(const ModelConfig& config, int layer) {
  const DeltaLayers& delta = config.delta;
  const auto name = [&](const char* what) { return fmt::format("layers.{}.{}.0", layer, what); };
  return {{.name = name("conv_states"), .shape = {as_size(delta.mixed_width()), as_size(delta.kernel)}},
          {.name = name("recurrent_states"),
           .shape = {as_size(delta.value_heads), as_size(delta.key_dim), as_size(delta.value_dim)}}};
}

std::vector<float> floats_of(const StateTensor& tensor, const std::string& where) {
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

}  // namespace

std::vector<StateTensor> tensors_of_state(const ModelConfig& config, int layer,
                                          std::span<const float> state) {
  const DeltaLayers& delta = config.delta;
  const size_t width = as_size(delta.mixed_width()), kernel = as_size(delta.kernel);
  Matrix<float> inputs(width, kernel);
  for (size_t t = 0; t + 1 < kernel; ++t)
    for (size_t c = 0; c < width; ++c) inputs(c, t + 1) = state[t * width + c];
  const std::span<const float> parts[] = {{inputs.data(), width * kernel},
                                          state.subspan((kernel - 1) * width)};
  std::vector<StateTensor> tensors = expected(config, layer);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto bytes = std::as_bytes(parts[i]);
    tensors[i] = state_tensor(tensors[i].name, DType::f32, tensors[i].shape, {bytes.begin(), bytes.end()});
  }
  return tensors;
}

std::vector<std::vector<float>> layer_states(const ModelConfig& config, std::span<const StateTensor> tensors,
                                             const std::string& where) {
  std::vector<std::vector<float>> states(as_size(config.num_layers));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_delta(layer)) continue;
    std::vector<float>& state = states[as_size(layer)];
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
      const std::vector<float> values = floats_of(*found, where);
      const size_t width = wanted.shape[0], kernel = wanted.shape[1];
      if (wanted.shape.size() > 2) {
        state.insert(state.end(), values.begin(), values.end());
        continue;
      }
      for (size_t t = 1; t < kernel; ++t)
        for (size_t c = 0; c < width; ++c) state.push_back(values[c * kernel + t]);
    }
  }
  return states;
}

}  // namespace kvcodec
