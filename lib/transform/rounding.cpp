#include "lib/transform/rounding.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/core/mapped.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

constexpr size_t kRowGrain = 16;
/// The fraction that levels of 0 to 15 bits leave of the energy of Gaussian values, and half the distance between levels in deviations (Max, "Quantizing
/// for minimum distortion", 1960).
constexpr std::array<double, kMaxLevelBits + 1> kLeft = {1,       0.3634, 0.1188, 0.03744, 0.01154, 0.0035,
                                                         0.00104, 3.0e-4, 8.7e-5, 2.5e-5,  6.8e-6,  1.9e-6,
                                                         5.2e-7,  1.4e-7, 4e-8,   1.1e-8};
constexpr std::array<double, kMaxLevelBits + 1> kHalfStep = {1,      0.798,  0.498,  0.293,  0.168,  0.0941,
                                                             0.052,  0.0285, 0.0155, 0.0083, 0.0045, 0.0024,
                                                             0.0013, 7e-4,   3.7e-4, 2e-4};
constexpr int kScales = 12;  // that are tried

/// The level whose multiple of a scale is nearest.
float nearest_level(float value, float inverse_scale, int bits) {
  const float scaled = value * inverse_scale;
  const auto levels = static_cast<float>(1 << bits);
  if (bits > kOddLevelBits) return std::clamp(std::nearbyint(scaled), 1 - levels / 2, levels / 2 - 1);
  return std::clamp(2 * std::floor(scaled / 2) + 1, 1 - levels, levels - 1);
}

/// The scale that leaves the least squared error, of some between that of Gaussian values and the one that reaches the largest value.
float scale_for(std::span<const float> vector, int bits) {
  double energy = 0;
  float largest = 0;
  for (const float value : vector) {
    energy += double{value} * double{value};
    largest = std::max(largest, std::abs(value));
  }
  if (!(largest > 0)) return 1;
  const double step = bits > kOddLevelBits ? 2 : 1,
               deviation = std::sqrt(energy / static_cast<double>(vector.size()));
  const double low = 0.75 * step * kHalfStep[static_cast<size_t>(bits)] * deviation,
               high = std::max(2 * low, step * double{largest} / ((1 << bits) - 1));
  float best = 0;
  double least = 0;
  for (int i = 0; i < kScales; ++i) {
    const auto scale = static_cast<float>(low * std::pow(high / low, i / (kScales - 1.0)));
    double error = 0;
    for (const float value : vector) {
      const float left = value - scale * nearest_level(value, 1 / scale, bits);
      error += double{left} * double{left};
    }
    if (i == 0 || error < least) least = error, best = scale;
  }
  return best;
}

}  // namespace

double left_by_rounding(int bits) { return kLeft[static_cast<size_t>(bits)]; }

double variance_for(int bits) {
  const auto b = static_cast<size_t>(std::clamp(bits, 1, kMaxLevelBits - 1));
  return 1 / std::sqrt((kLeft[b - 1] - kLeft[b]) * (kLeft[b] - kLeft[b + 1]));
}

std::vector<uint8_t> bits_of_vectors(std::span<const double> variances, double bound) {
  return mapped<uint8_t>(variances, [&](double variance) {
    uint8_t bits = 1;
    while (bits < kMaxLevelBits && variance * (kLeft[bits] - kLeft[bits + 1u]) > bound) ++bits;
    return bits;
  });
}

LevelRows round_vectors(MatrixView<const float> vectors, std::span<const uint8_t> bits) {
  LevelRows rows({bits.begin(), bits.end()}, vectors.cols());
  parallel_each(bits.size(), kRowGrain, [&](size_t i) {
    const float scale = scale_for(vectors.row(i), bits[i]);
    double length = 0;
    const auto levels = mapped<int16_t>(vectors.row(i), [&](float value) {
      const float level = nearest_level(value, 1 / scale, bits[i]);
      length += double{level} * double{level};
      return static_cast<int16_t>(level);
    });
    rows.set(i, levels, length > 0 ? static_cast<float>(1 / std::sqrt(length)) : 1);
  });
  return rows;
}

}  // namespace kvcodec
