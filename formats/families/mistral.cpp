// Mistral: Llama with a window in all layers or none.
#include "formats/families/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

constexpr int64_t kMistralSlidingWindow = 4096;

void describe_mistral(Reading& reading) {
  const int64_t window = window_of(reading.fields, kMistralSlidingWindow);
  const std::vector<bool> slides = sliding_layers(reading, [&](int) { return window > 0; });
  for (size_t layer = 0; layer < slides.size(); ++layer)
    if (slides[layer] != (window > 0))  // the list may repeat what holds anyway: nobody follows it
      throw bad_input(
          "layer_types says '{}' for layer {}; a mistral model with that sliding_window has the same attention in "
          "all layers",
          slides[layer] ? "sliding_attention" : "full_attention", layer);
  set_windows(reading.config, slides, window);
}

}  // namespace

const Family kMistral = {.model_type = "mistral", .class_prefix = "Mistral", .describe = describe_mistral};

}  // namespace kvcodec::families
