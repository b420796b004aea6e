#include "lib/pipeline/allocation.hpp"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

namespace kvcodec {

std::vector<int64_t> allocate_bits(std::span<const double> costs, int64_t total, int64_t least,
                                   int64_t most) {
  std::vector<int64_t> bits(costs.size(), least);
  // What the next bit gains is less than what the last one did, so taking the largest gain each time is optimal.
  using Gain = std::pair<double, size_t>;
  const auto after = [](const Gain& a, const Gain& b) {
    return a.first < b.first || (a.first == b.first && a.second > b.second);
  };
  std::priority_queue<Gain, std::vector<Gain>, decltype(after)> gains(after);
  const auto gain = [&](size_t i) { return costs[i] * std::exp2(-2.0 * static_cast<double>(bits[i])); };
  for (size_t i = 0; i < costs.size(); ++i)
    if (least < most) gains.emplace(gain(i), i);
  for (int64_t left = total - least * static_cast<int64_t>(costs.size()); left > 0 && !gains.empty();
       --left) {
    const size_t i = gains.top().second;
    gains.pop();
    if (++bits[i] < most) gains.emplace(gain(i), i);
  }
  return bits;
}

}  // namespace kvcodec
