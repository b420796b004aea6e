// What errors of each layer's cache cost a model, from a file that kvcodec sensitivity made.
#pragma once

#include <string>

#include "formats/results/sensitivity_file.hpp"
#include "lib/codec/codec.hpp"

namespace kvcodec::cli {

/// A file of sensitivities and its name, for messages.
struct Weights {
  std::string name;
  SensitivityFile file;

  /// What a unit of error energy costs there, in nats. Throws Error(bad_input) if it is not more than 0.
  double cost(Side side, int layer) const;
  LayerWeights by_layer() const;
};

/// Throws Error(bad_input) unless the file is of a model of that shape, and with the same weights where both are known. cache:
/// the file that is of that model, for messages.
Weights read_weights(const std::string& name, const ModelInfo& model, const std::string& cache);

/// The same for a codec's context, which knows the shape alone.
Weights read_weights(const std::string& name, const CodecContext& context);

}  // namespace kvcodec::cli
