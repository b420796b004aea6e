#include "lib/codec/layer_weights.hpp"

#include <algorithm>
#include <sstream>

#include <fmt/ranges.h>

#include "lib/core/error.hpp"

namespace kvcodec {

/// In records scales are text; the codec computes with the value of the text.
static std::string text_of(double scale) { return fmt::format("{:.3g}", scale); }

/// A float and its inverse hold this range by far.
constexpr double kMinScale = 1e-30, kMaxScale = 1e30;

/// The words of a text as numbers. refuse(word): the error for what is no number from `lowest` to `highest`.
template <class Number, class Refuse>
static std::vector<Number> numbers_in(const std::string& text, Number lowest, Number highest,
                                      const Refuse& refuse) {
  std::istringstream words(text);
  std::vector<Number> numbers;
  for (std::string word; words >> word;) {
    const auto number = number_in<Number>(word);
    if (!number || !(*number >= lowest && *number <= highest)) throw refuse(word);
    numbers.push_back(*number);
  }
  return numbers;
}

LayerWeights::LayerWeights(std::span<const std::array<double, 2>> costs) {
  double logs = 0;
  for (const auto& layer : costs)
    for (const double cost : layer) {
      if (!(cost > 0) || !std::isfinite(cost))
        throw failed("an error costs {}; it must be more than 0", cost);
      logs += std::log(cost);
    }
  const double mean = logs / (2 * static_cast<double>(costs.size()));
  for (const auto& layer : costs) {
    auto& scales = scales_.emplace_back();
    for (size_t side = 0; side < 2; ++side)
      scales[side] = static_cast<float>(std::stod(
          text_of(std::clamp(std::exp((mean - std::log(layer[side])) / 2), 10 * kMinScale, kMaxScale / 10))));
  }
}

void LayerWeights::write(Record& parameters) const {
  if (alike()) return;
  std::string text;
  for (size_t side = 0; side < 2; ++side)
    for (const auto& layer : scales_) text += (text.empty() ? "" : " ") + text_of(layer[side]);
  parameters.set(kErrorScales, text);
}

LayerWeights LayerWeights::read(const Record& parameters) {
  LayerWeights weights;
  if (!parameters.find(kErrorScales)) return weights;
  const auto scales = numbers_in(
      parameters.get_string(kErrorScales), kMinScale, kMaxScale,
      [](const std::string& word) { return bad_input("{}: {} is not a scale", kErrorScales, word); });
  const size_t layers = scales.size() / 2;
  if (layers == 0 || scales.size() != 2 * layers)
    throw bad_input("{} must be numbers, as many for values as for keys", kErrorScales);
  for (size_t layer = 0; layer < layers; ++layer)
    weights.scales_.push_back(
        {static_cast<float>(scales[layer]), static_cast<float>(scales[layers + layer])});
  return weights;
}

void LayerWeights::check_layers(int num_layers) const {
  if (!alike() && layers() != as_size(num_layers))
    throw bad_input("{} are of {} layers; the model has {}", kErrorScales, layers(), num_layers);
}

LayerBits::LayerBits(const BitOptions& options, int64_t lowest, int64_t highest, int num_layers)
    : layers_(as_size(num_layers)), bits_(options.bits) {
  numbers_ = numbers_in(options.layer_bits, lowest, highest, [&](const std::string& word) {
    return usage_error("layer-bits has '{}'; there must be integers between {} and {}", word, lowest,
                       highest);
  });
  if (!numbers_.empty() && numbers_.size() != 2 * layers_)
    throw usage_error("layer-bits has {} numbers; the keys and values of {} layers need {}", numbers_.size(),
                      layers_, 2 * layers_);
}

}  // namespace kvcodec
