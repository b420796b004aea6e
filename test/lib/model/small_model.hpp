// The smallest model that has all of one: what tests of whole loops run.
#pragma once

#include "lib/model/config.hpp"

namespace kvcodec::test {

inline ModelConfig small_config(int layers) {
  ModelConfig config;
  config.num_layers = layers, config.hidden_size = 32, config.intermediate_size = 48;
  config.num_q_heads = 4, config.num_kv_heads = 2, config.head_dim = 16;
  config.vocabulary_size = 60;
  config.window.assign(static_cast<size_t>(layers), 0);
  return config;
}

}  // namespace kvcodec::test
