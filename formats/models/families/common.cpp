#include <algorithm>
#include <limits>

#include "formats/models/families/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {

std::span<const Family* const> all_families() {
  static constexpr const Family* kAll[] = {
      &kLlama,  &kMistral, &kMixtral, &kQwen2, &kQwen3, &kQwen3Moe, &kGemma2,     &kGemma3,     &kGptNeoX,
      &kGptOss, &kGranite, &kOlmo2,   &kPhi,   &kPhi3,  &kSmolLm3,  &kStarcoder2, &kDeepseekV2, &kDeepseekV3};
  return kAll;
}

void refuse_bidirectional(std::string_view field, bool value) {
  throw bad_input("{} is {}; a model that reads what follows has no cache to go on with", field, value);
}

int as_int(const char* name, int64_t value) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
    throw bad_input("{} is {}; it does not fit 32 bits", name, value);
  return static_cast<int>(value);
}

int64_t window_of(const JsonFields& fields, int64_t otherwise) {
  if (fields.has_null("sliding_window")) return 0;
  const auto window = fields.get_int("sliding_window");
  if (window && *window < 1) throw bad_input("sliding_window is {}; it must be positive or null", *window);
  return window.value_or(otherwise);
}

std::vector<std::string> layer_types_of(const JsonFields& fields, int num_layers) {
  const nlohmann::json* list = fields.find("layer_types");
  if (!list) return {};
  std::vector<std::string> types;
  if (list->is_array() && list->size() == static_cast<size_t>(num_layers))
    for (const auto& type : *list)
      if (type == "full_attention" || type == "sliding_attention") types.push_back(type.get<std::string>());
  if (types.size() != static_cast<size_t>(num_layers))
    throw bad_input("layer_types must list 'full_attention' or 'sliding_attention' for each of {} layers",
                    num_layers);
  return types;
}

void set_windows(ModelConfig& config, const std::vector<bool>& slides, int64_t window) {
  for (const bool layer_slides : slides) {
    if (layer_slides && window == 0)
      throw bad_input("layer_types has 'sliding_attention', but no sliding_window is in use");
    config.window.push_back(layer_slides ? window : 0);
  }
}

void set_one_window(Reading& reading, int64_t window) {
  const std::vector<bool> slides = sliding_layers(reading, [&](int) { return window > 0; });
  const auto full = std::ranges::find(slides, false);
  if (window > 0 && full != slides.end())
    throw bad_input(
        "layer_types says 'full_attention' for layer {}; a {} model with that sliding_window has the same attention "
        "in all layers",
        full - slides.begin(), reading.config.family);
  set_windows(reading.config, slides, window);
}

}  // namespace kvcodec::families
