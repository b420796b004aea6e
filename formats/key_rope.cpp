#include "formats/key_rope.hpp"

#include "formats/model_config.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

ModelConfig rope_config(const ModelInfo& model) {
  ModelConfig config;
  config.num_layers = model.num_layers;
  config.head_dim = model.head_dim;
  config.rope_theta = model.rope_theta;
  config.rope_scaling = parse_rope_scaling(model.rope_scaling);
  const auto divisors = config.rope_scaling.divisors.size(), pairs = static_cast<size_t>(model.head_dim) / 2;
  if (model.head_dim % 2 != 0)
    throw bad_input("heads of {} dimensions have no pairs to turn", model.head_dim);
  if (config.rope_scaling.kind == RopeScaling::Kind::divided && divisors != pairs)
    throw bad_input("rope_scaling has {} divisors; heads of {} dimensions have {} pairs", divisors,
                    model.head_dim, pairs);
  return config;
}

}  // namespace

KeyRope key_rope_of(const ModelInfo& model) {
  if (model.key_state != "post-rope")
    return KeyRope::not_yet(
        fmt::format("they are from before the rotary embedding (key_state is {})", model.key_state));
  if (model.rope_theta == 0)
    return KeyRope::unknown("the file does not say how they were turned (rope_theta is 0)");
  try {
    return KeyRope::of(rope_config(model));
  } catch (const Error& error) {
    return KeyRope::unknown(error.what());
  }
}

}  // namespace kvcodec
