#include "lib/metrics/gaussian_bound.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

namespace kvcodec {

double gaussian_rate(std::span<const double> variances, double distortion) {
  if (variances.empty()) return 0;
  // The level whose errors sum up to the distortion: between two neighbours of the sorted variances, errors
  // grow linearly with it.
  std::vector<double> sorted(variances.begin(), variances.end());
  for (double& value : sorted) value = std::max(value, 0.0);
  std::ranges::sort(sorted);
  const auto n = static_cast<double>(sorted.size());
  double below = 0, level = INFINITY;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double above = static_cast<double>(sorted.size() - i);
    const double candidate = (distortion * n - below) / above;
    if (candidate <= sorted[i]) {
      level = candidate;
      break;
    }
    below += sorted[i];
  }
  double bits = 0;
  for (const double value : sorted)
    if (value > level) bits += std::log2(value / level) / 2;
  return bits / n;
}

double gaussian_distortion(std::span<const double> variances, double bits) {
  if (variances.empty()) return 0;
  std::vector<double> sorted(variances.begin(), variances.end());
  for (double& value : sorted) value = std::max(value, 0.0);
  std::ranges::sort(sorted, std::greater<>());
  const auto n = static_cast<double>(sorted.size());
  // With the k largest above the water: log2(level) = mean of their logarithms - 2 bits n / k; right for the
  // largest k whose smallest member is above it.
  double logs = 0, level = 0;
  size_t above = 0;
  for (size_t k = 1; k <= sorted.size() && sorted[k - 1] > 0; ++k) {
    logs += std::log2(sorted[k - 1]);
    const double candidate = std::exp2((logs - 2 * bits * n) / static_cast<double>(k));
    if (candidate > sorted[k - 1]) break;
    level = candidate;
    above = k;
  }
  double error = level * static_cast<double>(above);
  for (size_t i = above; i < sorted.size(); ++i) error += sorted[i];
  return error / n;
}

}  // namespace kvcodec
