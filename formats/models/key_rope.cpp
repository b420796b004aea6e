#include "formats/models/key_rope.hpp"

#include "formats/models/rope_description.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

ModelConfig rope_config(const ModelInfo& model) {
  ModelConfig config;
  config.num_layers = model.num_layers;
  config.head_dim = model.head_dim;
  config.rope.theta = model.rope_theta;
  if (model.head_dim % 2 != 0)
    throw bad_input("heads of {} dimensions have no pairs to turn", model.head_dim);
  read_rope_description(model.rope_scaling, config);
  check_ropes(config);
  return config;
}

}  // namespace

KeyRope key_rope_of(const ModelInfo& model) {
  if (model.key_state != "post-rope")
    return KeyRope::not_yet(
        fmt::format("they are from before the rotary embedding (key_state is {})", model.key_state));
  if (model.rope_theta == 0)
    return KeyRope::unknown("the file does not say how they were turned (rope_theta is 0)");
  for (int layer = 0; layer < model.num_layers; ++layer)
    if (const int dim = model.layer_shape(layer).key_dim; dim != 0 && dim != model.head_dim)
      return KeyRope::unknown("the file does not say how keys of several dimensions were turned");
  try {
    return KeyRope::of(rope_config(model));
  } catch (const Error& error) {
    return KeyRope::unknown(error.what());
  }
}

}  // namespace kvcodec
