// Llama and what shares its form: Mistral, Qwen 2 and 3.
#include "formats/gguf_families/architecture.hpp"

namespace kvcodec::gguf {
namespace {

void describe_llama(Reading& reading) { set_window(reading, 0); }

/// Qwen files that have the key for a window have it from a config.json that switches windows off.
void set_no_window(Reading& reading) {
  reading.config.window.assign(static_cast<size_t>(reading.config.num_layers), 0);
}

void describe_qwen2(Reading& reading) {
  reading.config.qkv_bias = true;
  set_no_window(reading);
}

void describe_qwen3(Reading& reading) {
  reading.config.qk_norm = QkNorm::heads;
  set_no_window(reading);
}

}  // namespace

const Architecture kLlama = {
    .name = "llama", .family = "llama", .describe = describe_llama, .pairs_neighbours = true};
const Architecture kQwen2 = {.name = "qwen2", .family = "qwen2", .describe = describe_qwen2};
const Architecture kQwen3 = {.name = "qwen3", .family = "qwen3", .describe = describe_qwen3};

}  // namespace kvcodec::gguf
