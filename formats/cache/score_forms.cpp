#include "formats/cache/score_forms.hpp"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "formats/io/json_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

constexpr char kWhere[] = "attribute 'scores'", kCap[] = "cap", kWindows[] = "windows", kSinks[] = "sinks";

/// A member that is an array of so many entries; nullptr if it is not there.
static const nlohmann::json* entries_of(const nlohmann::json& object, const char* name, int count) {
  const auto place = object.find(name);
  if (place == object.end()) return nullptr;
  if (!place->is_array() || place->size() != as_size(count))
    throw bad_input("{}: {} must be an array of {} entries, one for each layer", kWhere, name, count);
  return &*place;
}

static float number_of(const nlohmann::json& value, const char* name) {
  const float number = value.is_number() ? value.get<float>() : NAN;
  if (!std::isfinite(number)) throw bad_input("{}: {} has an entry that is no number", kWhere, name);
  return number;
}

std::string text_of(const ScoreForms& forms) {
  if (!forms.known) return "";
  auto object = nlohmann::ordered_json::object();
  if (forms.cap > 0) object[kCap] = forms.cap;
  if (std::ranges::any_of(forms.windows, [](uint64_t window) { return window > 0; }))
    object[kWindows] = forms.windows;
  for (size_t first = 0; first < forms.sinks.size(); first += forms.q_heads)
    object[kSinks].push_back(
        std::vector(forms.sinks.begin() + static_cast<ptrdiff_t>(first),
                    forms.sinks.begin() + static_cast<ptrdiff_t>(first + forms.q_heads)));
  return object.dump();
}

ScoreForms score_forms(const ModelInfo& model) {
  ScoreForms forms{.q_heads = as_size(model.num_q_heads)};
  if (model.scores.empty()) return forms;
  const nlohmann::json object = parse_json_object(model.scores, kWhere);
  forms.known = true;
  if (const auto cap = object.find(kCap); cap != object.end()) {
    forms.cap = number_of(*cap, kCap);
    if (forms.cap <= 0) throw bad_input("{}: {} is {}; it must be above 0", kWhere, kCap, forms.cap);
  }
  if (const auto* windows = entries_of(object, kWindows, model.num_layers))
    for (const auto& window : *windows) {
      if (!window.is_number_unsigned())
        throw bad_input("{}: {} has an entry that is no number of tokens", kWhere, kWindows);
      forms.windows.push_back(window.get<uint64_t>());
    }
  if (const auto* sinks = entries_of(object, kSinks, model.num_layers))
    for (const auto& of_layer : *sinks) {
      if (!of_layer.is_array() || of_layer.size() != forms.q_heads)
        throw bad_input("{}: {} must have {} numbers for each layer, one for each query head", kWhere, kSinks,
                        forms.q_heads);
      for (const auto& sink : of_layer) forms.sinks.push_back(number_of(sink, kSinks));
    }
  return forms;
}

}  // namespace kvcodec
