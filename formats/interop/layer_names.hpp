// How tensors and arrays of layers are called in files of other programs.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace kvcodec::interop {

/// More than any model has.
inline constexpr int kMostLayers = 4096;

struct LayerName {
  int layer;
  size_t side;  ///< 0: keys, 1: values
};

/// Of "layers.3.keys", "past_key_values.3.key", "past_key_values.3.0", "key_cache.3" and what values are called then.
std::optional<LayerName> layer_name(std::string_view name);

}  // namespace kvcodec::interop
