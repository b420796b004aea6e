#include "lib/codec/layer_weights.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

/// In records scales are text; what is reckoned with is what the text says.
std::string text_of(double scale) { return fmt::format("{:.3g}", scale); }

/// What a float and its inverse hold by far.
constexpr double kLeast = 1e-30, kMost = 1e30;

}  // namespace

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
          text_of(std::clamp(std::exp((mean - std::log(layer[side])) / 2), 10 * kLeast, kMost / 10))));
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
  std::istringstream text(parameters.get_string(kErrorScales));
  std::vector<float> scales;
  for (std::string word; text >> word;) {
    double scale = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), scale);
    if (error != std::errc() || end != word.data() + word.size() || !(scale >= kLeast && scale <= kMost))
      throw bad_input("{}: {} is not a scale", kErrorScales, word);
    scales.push_back(static_cast<float>(scale));
  }
  const size_t layers = scales.size() / 2;
  if (layers == 0 || scales.size() != 2 * layers)
    throw bad_input("{} must be numbers, as many for values as for keys", kErrorScales);
  for (size_t layer = 0; layer < layers; ++layer)
    weights.scales_.push_back({scales[layer], scales[layers + layer]});
  return weights;
}

void LayerWeights::check_layers(int num_layers) const {
  if (!alike() && layers() != static_cast<size_t>(num_layers))
    throw bad_input("{} are of {} layers; the model has {}", kErrorScales, layers(), num_layers);
}

}  // namespace kvcodec
