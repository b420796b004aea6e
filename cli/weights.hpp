// What errors of each layer's cache cost a model, from a file that kvcodec sensitivity made.
#pragma once

#include <string>

#include "formats/sensitivity_file.hpp"
#include "lib/codec/group_shape.hpp"
#include "lib/codec/layer_weights.hpp"

namespace kvcodec::cli {

/// A file of sensitivities and its name, for messages.
struct Weights {
  std::string name;
  SensitivityFile file;

  /// What a unit of error energy costs there, in nats. Throws Error(bad_input) if it is not more than 0.
  double cost(Side side, int layer) const;
  LayerWeights by_layer() const;
};

/// Throws Error(bad_input) unless the file is of a model with these layers, heads and dimensions.
Weights read_weights(const std::string& name, int num_layers, int heads, int head_dim);

}  // namespace kvcodec::cli
