#include "cli/codecs/weights.hpp"

#include <vector>

#include "lib/core/error.hpp"

namespace kvcodec::cli {

double Weights::cost(Side side, int layer) const {
  // Both are of noise on every value of a token: what it costs is the sum over all of them. Derivatives were taken of
  // all documents, noise was put on some.
  const SensitivityInfo& info = file.info;
  const double nats = info.fisher
                          ? info.fisher->nats(side, layer)
                          : info.layers[static_cast<size_t>(layer)][static_cast<size_t>(side)].nats.mean;
  if (!(nats > 0))
    throw bad_input("{}: layer {} costs {} nats for a unit of noise on its {}s; it must be more than 0", name,
                    layer, nats, side);
  return nats;
}

LayerWeights Weights::by_layer() const {
  std::vector<std::array<double, 2>> costs;
  costs.reserve(file.info.layers.size());
  for (int layer = 0; layer < file.info.model.num_layers; ++layer)
    costs.push_back({cost(Side::key, layer), cost(Side::value, layer)});
  return LayerWeights(costs);
}

namespace {

Weights read_weights_of(const std::string& name, int num_layers, int heads, int head_dim) {
  Weights weights{name, read_sensitivities(name)};
  const ModelInfo& measured = weights.file.info.model;
  if (measured.num_layers != num_layers || measured.num_kv_heads != heads || measured.head_dim != head_dim)
    throw bad_input("{}: it is of {} layers with {} heads of {}; the cache has {}, {} of {}", name,
                    measured.num_layers, measured.num_kv_heads, measured.head_dim, num_layers, heads,
                    head_dim);
  return weights;
}

}  // namespace

Weights read_weights(const std::string& name, const ModelInfo& model, const std::string& cache) {
  Weights weights = read_weights_of(name, model.num_layers, model.num_kv_heads, model.head_dim);
  check_same_weights(name, weights.file.info.model, cache, model);
  return weights;
}

Weights read_weights(const std::string& name, const CodecContext& context) {
  return read_weights_of(name, context.num_layers, context.heads, context.head_dim);
}

}  // namespace kvcodec::cli
