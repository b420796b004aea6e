// The state of layers that keep no keys and values (DeltaLayers), as the tensors of a document that caches of transformers have:
// layers.N.conv_states.0, (mixed_width, kernel), the inputs of the convolution, the oldest first, and layers.N.recurrent_states.0,
// (value_heads, key_dim, value_dim), unless the layer is a convolution alone. The first column of the former is behind the convolution's reach; this program writes zeros there.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "formats/cache/header.hpp"
#include "lib/model/config.hpp"

namespace kvcodec {

/// The tensors of a layer, of f32. state: as PrefillSink::state() has it.
std::vector<StateTensor> tensors_of_state(const ModelConfig& config, int layer, std::span<const float> state);

/// The inverse, of all layers of a model; layers with keys and values have none. Takes tensors of f32, f16 and bf16. where: the
/// document, for messages. Throws Error(bad_input) for tensors that are missing, or are not what the model has.
std::vector<std::vector<float>> layer_states(const ModelConfig& config, std::span<const StateTensor> tensors,
                                             const std::string& where);

}  // namespace kvcodec
