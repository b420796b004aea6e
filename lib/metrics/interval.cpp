#include "lib/metrics/interval.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

/// The 97.5% point of the normal distribution.
constexpr double kNormal = 1.959963984540054;

}  // namespace

double student_975(uint64_t degrees) {
  if (degrees == 0) return std::numeric_limits<double>::infinity();
  if (degrees == 1) return 12.706204736174707;
  if (degrees == 2) return 4.302652729749464;
  const double z = kNormal, n = static_cast<double>(degrees);
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z, z9 = z7 * z * z;
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n) +
         (79 * z9 + 776 * z7 + 1482 * z5 - 1920 * z3 - 945 * z) / (92160 * n * n * n * n);
}

Estimate mean_by_document(std::span<const double> sums, std::span<const double> counts) {
  if (sums.size() != counts.size()) throw failed("{} sums of {} documents", sums.size(), counts.size());
  double sum = 0, count = 0;
  uint64_t documents = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] == 0) continue;
    sum += sums[i];
    count += counts[i];
    ++documents;
  }
  Estimate result{sum / count, std::numeric_limits<double>::infinity()};
  if (documents < 2) return result;
  double spread = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const double residual = sums[i] - result.mean * counts[i];
    spread += counts[i] == 0 ? 0 : residual * residual;
  }
  const auto n = static_cast<double>(documents);
  result.half_width = student_975(documents - 1) * std::sqrt(spread * n / (n - 1)) / count;
  return result;
}

ShareEstimate share_of(uint64_t successes, uint64_t trials) {
  if (trials == 0) return {};
  const double n = static_cast<double>(trials), p = static_cast<double>(successes) / n,
               z2 = kNormal * kNormal;
  const double center = (p + z2 / (2 * n)) / (1 + z2 / n);
  const double half = kNormal * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n);
  return {p, std::fmax(0, center - half), std::fmin(1, center + half)};
}

double quantile(std::vector<float>& values, double fraction) {
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto lower = values.begin() + static_cast<ptrdiff_t>(place);
  std::nth_element(values.begin(), lower, values.end());
  const double share = place - std::floor(place);
  if (share == 0) return *lower;
  const double next = *std::min_element(lower + 1, values.end());
  return *lower + share * (next - *lower);
}

}  // namespace kvcodec
