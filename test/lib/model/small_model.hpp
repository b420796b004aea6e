// The smallest model that has all parts of one: used by tests of whole loops.
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
