// Qwen 2 and 2.5: biases on queries, keys and values; windows from some layer on, if they are switched on. Qwen 3:
// norms of heads instead of the biases.
#include "formats/families/family.hpp"

namespace kvcodec::families {
namespace {

constexpr int64_t kSlidingWindow = 4096;
constexpr int64_t kMaxWindowLayers = 28;  // layers below it never have a window
constexpr int kQwen3HeadDim = 128;

void read_windows(Reading& reading) {
  const JsonFields& fields = reading.fields;
  int64_t window = window_of(fields, kSlidingWindow);
  if (!fields.get_bool("use_sliding_window").value_or(false)) window = 0;
  const int64_t first = fields.get_int("max_window_layers").value_or(kMaxWindowLayers);
  const auto slides = [&](int layer) { return window > 0 && layer >= first; };
  set_windows(reading.config, sliding_layers(reading, slides), window);
}

void describe_qwen2(Reading& reading) {
  reading.config.qkv_bias = true;
  read_windows(reading);
}

void describe_qwen3(Reading& reading) {
  reading.config.qk_norm = QkNorm::heads;
  read_windows(reading);
}

}  // namespace

const Family kQwen2 = {.model_type = "qwen2", .class_prefix = "Qwen2", .describe = describe_qwen2};
const Family kQwen3 = {.model_type = "qwen3",
                       .class_prefix = "Qwen3",
                       .describe = describe_qwen3,
                       .head_dim = kQwen3HeadDim,
                       .may_have_attention_bias = true};

}  // namespace kvcodec::families
