#include "lib/model/rope.hpp"

#include <cmath>
#include <numbers>

#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

/// Llama 3.1's rule for one frequency. Constants are rounded to float where the reference mixes them with
/// float tensors, and a constant divided by a tensor is the constant times the reciprocal, as there.
float llama3_frequency(float frequency, const RopeScaling& scaling) {
  const double low_wavelength = scaling.original_positions / scaling.low_frequency_factor;
  const double high_wavelength = scaling.original_positions / scaling.high_frequency_factor;
  const auto factor = static_cast<float>(scaling.factor);
  const float wavelength = 1 / frequency * static_cast<float>(2 * std::numbers::pi);
  if (wavelength < static_cast<float>(high_wavelength)) return frequency;
  if (wavelength > static_cast<float>(low_wavelength)) return frequency / factor;
  const float turns = 1 / wavelength * static_cast<float>(scaling.original_positions);
  const float smooth = (turns - static_cast<float>(scaling.low_frequency_factor)) /
                       static_cast<float>(scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const ModelConfig& config) {
  std::vector<float> frequencies(static_cast<size_t>(config.head_dim) / 2);
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(config.head_dim);
    // The power is correctly rounded here; the reference's float power may be off by one unit in the last
    // place.
    const double theta = static_cast<float>(config.rope_theta);
    float frequency = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    if (config.rope_scaling.kind == RopeScaling::Kind::linear)
      frequency /= static_cast<float>(config.rope_scaling.factor);
    if (config.rope_scaling.kind == RopeScaling::Kind::llama3)
      frequency = llama3_frequency(frequency, config.rope_scaling);
    if (config.rope_scaling.kind == RopeScaling::Kind::divided) frequency /= config.rope_scaling.divisors[j];
    frequencies[j] = frequency;
  }
  return frequencies;
}

RopeTable::RopeTable(const ModelConfig& config, size_t positions)
    : cosines_(positions, static_cast<size_t>(config.head_dim) / 2),
      sines_(cosines_.rows(), cosines_.cols()) {
  const std::vector<float> frequencies = rope_frequencies(config);
  parallel_for(positions, 64, [&](size_t begin, size_t end, int) {
    for (size_t position = begin; position < end; ++position)
      for (size_t j = 0; j < frequencies.size(); ++j) {
        const double angle = static_cast<float>(position) * frequencies[j];  // rounded to float, then widened
        cosines_(position, j) = static_cast<float>(std::cos(angle));
        sines_(position, j) = static_cast<float>(std::sin(angle));
      }
  });
}

void RopeTable::turn(size_t position, std::span<float> head) const {
  const std::span<const float> cosine = cosines(position), sine = sines(position);
  const size_t half = cosine.size();
  for (size_t j = 0; j < half; ++j) {
    const float first = head[j], second = head[j + half];
    head[j] = first * cosine[j] - second * sine[j];
    head[j + half] = second * cosine[j] + first * sine[j];
  }
}

}  // namespace kvcodec
