// The shapes of a model's layers in its cache.
#pragma once

#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/model/config.hpp"

namespace kvcodec {

/// The shape of each layer; none if keys and values of all layers have num_kv_heads heads of head_dim dimensions.
inline std::vector<LayerShape> layer_shapes_of(const ModelConfig& config) {
  if (!config.is_latent() && config.delta.layers.empty() && config.local_head_dim == 0 &&
      config.shared_layers == 0)
    return {};
  std::vector<LayerShape> shapes(static_cast<size_t>(config.num_layers));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    LayerShape& shape = shapes[static_cast<size_t>(layer)];
    if (const int source = config.source_of(layer); source != layer) shape.source = source;
    if (!config.has_cache(layer)) continue;
    const ModelConfig own = config.of_layer(layer);
    shape = {.heads = own.num_kv_heads,
             .key_dim = own.head_dim,
             .value_dim = own.value_dim(),
             .values_in_keys = own.is_latent()};
  }
  return shapes;
}

}  // namespace kvcodec
