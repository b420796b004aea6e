#include "lib/model/rope.hpp"

#include <algorithm>
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

/// How far each of `count` frequencies is kept by yarn: 1 = kept, 0 = divided by the factor. The reference
/// computes the bounds in double and the ramp between them in float.
class YarnRamp {
 public:
  YarnRamp(const Rope& rope, int dims) {
    const RopeScaling& scaling = rope.scaling;
    const auto pair_that_turns = [&](double turns) {
      return dims * std::log(scaling.original_positions / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(rope.theta));
    };
    low_ = pair_that_turns(scaling.fast_turns), high_ = pair_that_turns(scaling.slow_turns);
    if (scaling.whole_bounds) low_ = std::floor(low_), high_ = std::ceil(high_);
    low_ = std::max(low_, 0.0), high_ = std::min(high_, dims - 1.0);
    if (low_ == high_) high_ += 0.001;  // as the reference avoids a division by 0
  }
  float kept(size_t pair) const {
    const float place =
        (static_cast<float>(pair) - static_cast<float>(low_)) / static_cast<float>(high_ - low_);
    return 1 - std::clamp(place, 0.0f, 1.0f);
  }

 private:
  double low_, high_;
};

/// One frequency after scaling. power: theta to the pair's exponent.
float scaled_frequency(float power, size_t pair, const Rope& rope, int dims, RopeLength length) {
  const RopeScaling& scaling = rope.scaling;
  const float frequency = 1.0f / power;
  const auto factor = static_cast<float>(scaling.factor);
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      return frequency;
    case RopeScaling::Kind::linear:
      return frequency / factor;
    case RopeScaling::Kind::llama3:
      return llama3_frequency(frequency, scaling);
    case RopeScaling::Kind::yarn: {
      const float kept = YarnRamp(rope, dims).kept(pair);
      return 1.0f / (factor * power) * (1 - kept) + frequency * kept;
    }
    case RopeScaling::Kind::longrope:
      return 1.0f / ((length == RopeLength::longer ? scaling.long_divisors : scaling.divisors)[pair] * power);
    case RopeScaling::Kind::divided:
      return frequency / scaling.divisors[pair];
  }
  return frequency;
}

/// Whether documents of so many tokens turn by longrope's other list.
RopeLength length_of(const Rope& rope, size_t tokens) {
  return rope.scaling.kind == RopeScaling::Kind::longrope &&
                 static_cast<double>(tokens) > rope.scaling.original_positions
             ? RopeLength::longer
             : RopeLength::up_to_original;
}

bool has_layer(const ModelConfig& config, LayerRope wanted) {
  if (config.layer_rope.empty()) return wanted == LayerRope::usual;
  return std::find(config.layer_rope.begin(), config.layer_rope.end(), wanted) != config.layer_rope.end();
}

size_t tables_of(const Rope& rope) { return rope.scaling.kind == RopeScaling::Kind::longrope ? 2 : 1; }

}  // namespace

std::vector<float> rope_frequencies(const Rope& rope, int head_dim, RopeLength length) {
  const int dims = turned_dims(rope, head_dim);
  std::vector<float> frequencies(static_cast<size_t>(dims) / 2);
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(dims);
    // The power is correctly rounded here; the reference's float power may be off by one unit in the last
    // place.
    const double theta = static_cast<float>(rope.theta);
    const auto power = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    frequencies[j] = scaled_frequency(power, j, rope, dims, length);
  }
  return frequencies;
}

RopeTable::RopeTable(const Rope& rope, int head_dim, size_t positions, RopeLength length)
    : first_(static_cast<size_t>(rope.first)),
      cosines_(positions, static_cast<size_t>(turned_dims(rope, head_dim)) / 2),
      sines_(cosines_.rows(), cosines_.cols()) {
  const std::vector<float> frequencies = rope_frequencies(rope, head_dim, length);
  const auto factor = static_cast<float>(rope.scaling.attention_factor);
  parallel_for(positions, 64, [&](size_t begin, size_t end, int) {
    for (size_t position = begin; position < end; ++position)
      for (size_t j = 0; j < frequencies.size(); ++j) {
        const double angle = static_cast<float>(position) * frequencies[j];  // rounded to float, then widened
        cosines_(position, j) = static_cast<float>(std::cos(angle)) * factor;
        sines_(position, j) = static_cast<float>(std::sin(angle)) * factor;
      }
  });
}

void RopeTable::turn(size_t position, std::span<float> head) const {
  const std::span<const float> cosine = cosines(position), sine = sines(position);
  const size_t half = cosine.size();
  head = head.subspan(first_);
  for (size_t j = 0; j < half; ++j) {
    const float first = head[j], second = head[j + half];
    head[j] = first * cosine[j] - second * sine[j];
    head[j + half] = second * cosine[j] + first * sine[j];
  }
}

void RopeTable::turn_back(size_t position, std::span<float> head) const {
  const std::span<const float> cosine = cosines(position), sine = sines(position);
  const size_t half = cosine.size();
  head = head.subspan(first_);
  for (size_t j = 0; j < half; ++j) {
    const float first = head[j], second = head[j + half];
    head[j] = first * cosine[j] + second * sine[j];
    head[j + half] = second * cosine[j] - first * sine[j];
  }
}

size_t rope_tables(const ModelConfig& config) {
  return (has_layer(config, LayerRope::usual) ? tables_of(config.rope) : 0) +
         (has_layer(config, LayerRope::local) ? tables_of(config.local_rope) : 0);
}

RopeTables::RopeTables(const ModelConfig& config, size_t longest) : config_(config) {
  if (has_layer(config, LayerRope::usual)) usual_ = lengths_of(config.rope, config.head_dim, longest);
  if (has_layer(config, LayerRope::local)) local_ = lengths_of(config.local_rope, config.head_dim, longest);
}

RopeTables::Lengths RopeTables::lengths_of(const Rope& rope, int head_dim, size_t longest) {
  Lengths tables;
  tables.usual.emplace(rope, head_dim, longest);
  if (length_of(rope, longest) == RopeLength::longer)
    tables.longer.emplace(rope, head_dim, longest, RopeLength::longer);
  return tables;
}

const RopeTable* RopeTables::table(int layer, size_t document_tokens) const {
  const LayerRope kind = config_.rope_of(layer);
  if (kind == LayerRope::none) return nullptr;
  const bool usual = kind == LayerRope::usual;
  const Lengths& tables = usual ? usual_ : local_;
  const bool longer =
      length_of(usual ? config_.rope : config_.local_rope, document_tokens) == RopeLength::longer;
  return longer ? &*tables.longer : &*tables.usual;
}

}  // namespace kvcodec
