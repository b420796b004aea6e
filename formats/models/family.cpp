#include "formats/models/family.hpp"

#include <algorithm>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec::families {

/// Families by the sources in families/, whose names the build knows (cmake/lists.cmake).
std::vector<std::span<const Family>> families_of_files();

const std::vector<Family>& all_families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> families;
    for (const auto more : families_of_files()) families.insert(families.end(), more.begin(), more.end());
    return families;
  }();
  return all;
}

std::string listed(std::vector<std::string_view> names) {
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

void refuse_bidirectional(std::string_view field, bool value) {
  throw bad_input("{} is {}; a model that reads what follows has no cache to go on with", field, value);
}

int as_int(const char* name, int64_t value) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
    throw bad_input("{} is {}; it does not fit 32 bits", name, value);
  return static_cast<int>(value);
}

int int_of(const JsonFields& fields, const char* name, int64_t otherwise) {
  return as_int(name, fields.get_int(name).value_or(otherwise));
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

void set_window_by_types(Reading& reading, int64_t window) {
  set_windows(reading.config, sliding_layers(reading, [&](int) { return window > 0; }), window);
}

void read_local_experts(Reading& reading, int64_t experts, int64_t chosen) {
  Mixture& mixture = reading.config.mixture;
  mixture.experts = int_of(reading.fields, "num_local_experts", experts);
  mixture.chosen = int_of(reading.fields, "num_experts_per_tok", chosen);
  mixture.width = reading.config.intermediate_size;
  mixture.layers.assign(static_cast<size_t>(reading.config.num_layers), true);
}

}  // namespace kvcodec::families
