// The shapes of a model's layers in its cache.
#pragma once

#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/model/config.hpp"

namespace kvcodec {

/// The shape of each layer; none if keys and values of all layers have num_kv_heads heads of head_dim dimensions.
inline std::vector<LayerShape> layer_shapes_of(const ModelConfig& config) {
  if (!config.is_latent() && config.delta.layers.empty()) return {};
  std::vector<LayerShape> shapes(static_cast<size_t>(config.num_layers),
                                 {.heads = config.num_kv_heads,
                                  .key_dim = config.head_dim,
                                  .value_dim = config.value_dim(),
                                  .values_in_keys = config.is_latent()});
  for (int layer = 0; layer < config.num_layers; ++layer)
    if (config.is_delta(layer)) shapes[static_cast<size_t>(layer)] = {};
  return shapes;
}

}  // namespace kvcodec
