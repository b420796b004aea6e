#include "formats/models/gguf_fields.hpp"

#include <algorithm>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec::gguf {

Fields::Fields(const Gguf& file, std::string_view architecture)
    : file_(file), prefix_(std::string(architecture) + '.') {}

int Fields::as_size(std::string_view name, int64_t value) const {
  if (value < 0 || value > std::numeric_limits<int>::max())
    throw bad_input("{} is {}; it must be in 0..{}", key(name), value, std::numeric_limits<int>::max());
  return static_cast<int>(value);
}

int Fields::need_size(std::string_view name) const { return as_size(name, file_.need_int(key(name))); }

int Fields::size_or(std::string_view name, int otherwise) const {
  const auto value = file_.get_int(key(name));
  return value ? as_size(name, *value) : otherwise;
}

int Fields::need_size_of_layers(std::string_view name) const {
  if (!file_.is_array(key(name))) return need_size(name);
  const std::vector<int64_t> values = *file_.get_ints(key(name));
  if (values.empty() || std::any_of(values.begin(), values.end(), [&](int64_t v) { return v != values[0]; }))
    throw bad_input("{} differs by layer; one value for all layers is supported", key(name));
  return as_size(name, values[0]);
}

double Fields::number_or(std::string_view name, double otherwise) const {
  return get_number(name).value_or(otherwise);
}

void Fields::must_be(std::string_view name, double value) const {
  if (const auto said = get_number(name); said && *said != value)
    throw bad_input("{} is {}; only {} is supported", key(name), *said, value);
}

void set_window(Reading& reading, int otherwise) {
  const int window = reading.fields.size_or("attention.sliding_window", otherwise);
  reading.config.window.assign(static_cast<size_t>(reading.config.num_layers), window);
}

std::vector<bool> sliding_layers(const Reading& reading, int period) {
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  const Fields& fields = reading.fields;
  const auto layers = static_cast<size_t>(reading.config.num_layers);
  if (fields.file().is_array(fields.key(kPattern))) {
    std::vector<bool> slides = *fields.file().get_flags(fields.key(kPattern));
    if (slides.size() != layers)
      throw bad_input("{} has {} entries; there are {} layers", fields.key(kPattern), slides.size(), layers);
    return slides;
  }
  const auto every = static_cast<size_t>(fields.size_or(kPattern, period));
  std::vector<bool> slides;
  slides.reserve(layers);
  for (size_t layer = 0; layer < layers; ++layer) slides.push_back(every == 0 || (layer + 1) % every != 0);
  return slides;
}

void set_windows(Reading& reading, const std::vector<bool>& slides, int window) {
  for (const bool layer_slides : slides) reading.config.window.push_back(layer_slides ? window : 0);
}

void set_no_window(Reading& reading) {
  reading.config.window.assign(static_cast<size_t>(reading.config.num_layers), 0);
}

}  // namespace kvcodec::gguf
