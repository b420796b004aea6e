// Mistral: Llama with a window in all layers or none.
#include "formats/models/families/family.hpp"

namespace kvcodec::families {
namespace {

constexpr int64_t kMistralSlidingWindow = 4096;

void describe_mistral(Reading& reading) {
  set_one_window(reading, window_of(reading.fields, kMistralSlidingWindow));
}

}  // namespace

const Family kMistral = {.model_type = "mistral", .class_prefix = "Mistral", .describe = describe_mistral};

}  // namespace kvcodec::families
