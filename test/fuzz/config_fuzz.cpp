// config.json: any bytes are refused or give a model whose sizes fit together.
#include <string>

#include "formats/models/model_config.hpp"
#include "lib/model/rope.hpp"
#include "test/fuzz/fuzz.hpp"

using namespace kvcodec;

KVCODEC_FUZZ_TARGET(config) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzz::expect_refusal_or_success([&] {
    const ModelConfig config = parse_model_config(text, "config.json").config;
    check(config);
    fuzz::require(config.num_q_heads % config.num_kv_heads == 0 && config.group_size() > 0);
    fuzz::require(config.window.size() == static_cast<size_t>(config.num_layers));
    fuzz::require(rope_frequencies(config.rope, config.head_dim).size() ==
                  static_cast<size_t>(turned_dims(config.rope, config.head_dim)) / 2);
  });
  return 0;
}
