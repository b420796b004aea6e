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

namespace {

/// What a bit gains from one point to another; none unless it costs more and loses less.
double slope(const RatePoint& from, const RatePoint& to) {
  return to.bits > from.bits ? (from.cost - to.cost) / (to.bits - from.bits) : 0;
}

/// The lower convex hull, from the fewest bits to the least cost.
std::vector<size_t> hull_of(const std::vector<RatePoint>& curve) {
  const auto fewer = [](const RatePoint& a, const RatePoint& b) {
    return a.bits < b.bits || (a.bits == b.bits && a.cost < b.cost);
  };
  std::vector<size_t> hull{static_cast<size_t>(std::ranges::min_element(curve, fewer) - curve.begin())};
  for (bool found = true; found;) {
    found = false;
    const RatePoint& last = curve[hull.back()];
    size_t next = 0;
    for (size_t i = 0; i < curve.size(); ++i) {
      const double gain = slope(last, curve[i]), best = found ? slope(last, curve[next]) : 0;
      if (gain > best || (found && gain == best && curve[i].bits > curve[next].bits)) next = i, found = true;
    }
    if (found) hull.push_back(next);
  }
  return hull;
}

}  // namespace

std::vector<std::array<size_t, 2>> best_pairs(const std::array<std::vector<RatePoint>, 2>& curves) {
  const std::array<std::vector<size_t>, 2> hulls{hull_of(curves[0]), hull_of(curves[1])};
  std::array<size_t, 2> at{};
  std::vector<std::array<size_t, 2>> pairs;
  const auto gain = [&](size_t q) {
    const auto& hull = hulls[q];
    return at[q] + 1 < hull.size() ? slope(curves[q][hull[at[q]]], curves[q][hull[at[q] + 1]]) : -1.0;
  };
  pairs.push_back({hulls[0][0], hulls[1][0]});
  while (gain(0) > 0 || gain(1) > 0) {
    ++at[gain(1) > gain(0)];
    pairs.push_back({hulls[0][at[0]], hulls[1][at[1]]});
  }
  return pairs;
}

}  // namespace kvcodec
