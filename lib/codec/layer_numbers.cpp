#include "lib/codec/layer_numbers.hpp"

#include <charconv>
#include <sstream>

#include "lib/core/error.hpp"

namespace kvcodec {

LayerNumbers::LayerNumbers(std::string_view option, const std::string& text, int64_t otherwise, int64_t least,
                           int64_t most, int num_layers)
    : otherwise_(otherwise) {
  std::istringstream words(text);
  std::vector<int64_t> all;
  for (std::string word; words >> word;) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size() || number < least || number > most)
      throw usage_error("{} has '{}'; there must be integers between {} and {}", option, word, least, most);
    all.push_back(number);
  }
  if (all.empty()) return;
  const auto layers = static_cast<size_t>(num_layers);
  if (all.size() != 2 * layers)
    throw usage_error("{} has {} numbers; the keys and values of {} layers need {}", option, all.size(),
                      layers, 2 * layers);
  for (size_t layer = 0; layer < layers; ++layer) numbers_.push_back({all[layer], all[layers + layer]});
}

std::string layer_numbers_text(std::span<const int64_t> numbers) {
  return fmt::format("{}", fmt::join(numbers, " "));
}

Record without_empty(const Record& record, std::string_view option) {
  Record rest;
  for (const auto& [name, value] : record.items())
    if (name != option || !to_text(value).empty()) rest.set(name, value);
  return rest;
}

}  // namespace kvcodec
