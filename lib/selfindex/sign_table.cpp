#include "lib/selfindex/sign_table.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"
#include "lib/selfindex/sign_kernels.hpp"

namespace kvcodec {
namespace {

constexpr float kHighestByte = 255;

/// Half a step, and what rounding in float may add: the argument of the rounding is at most 256 and went
/// through four operations, each off by 2^-24 of it.
constexpr double kHalfStep = 0.5 + 256 * 4 * 0x1p-24;

/// An operation in float is off by so much, in parts of its result.
constexpr double kUnit = 0x1p-24 * 1.001;

}  // namespace

SignTable::SignTable(const SignCodebook& codebook, std::span<const float> query)
    : groups_(codebook.groups()), exact_(groups_ * kSignCodes), bytes_(groups_ * kSignCodes) {
  if (query.size() != codebook.dims())
    throw failed("a query of {} values against a codebook of {} dimensions", query.size(), codebook.dims());
  if (groups_ == 0) return;
  std::vector<float> low(groups_), high(groups_);
  const sign_kernels::Table& kernels = sign_kernels::best();
  kernels.products(codebook.centroids.data(), query.data(), groups_, exact_.data(), low.data(), high.data());

  float range = 0;
  double offset = 0, largest = 0;  // largest: what the magnitudes of a key's entries may add up to
  for (size_t group = 0; group < groups_; ++group) {
    range = std::max(range, high[group] - low[group]);
    offset += low[group];
    largest += std::max(std::abs(low[group]), std::abs(high[group]));
  }
  if (!std::isfinite(range) || !std::isfinite(offset) || largest > std::numeric_limits<float>::max())
    throw bad_input("the products of a query with the centroids are beyond the range of floats");
  offset_ = static_cast<float>(offset);

  const auto groups = static_cast<double>(groups_);
  // The float score's additions, of parts no larger than `largest`; then, for offset + scale * sum, whose
  // product is at most twice that and half a step for each group, the roundings of offset, product and sum.
  // The last term is for subnormal results.
  const double rounding =
      kUnit * ((groups + 6) * largest + 2 * groups * range / kHighestByte) + groups * 0x1p-140;
  const float inverse = kHighestByte / range;
  if (range == 0) {
    error_bound_ = rounding;
    return;
  }
  if (std::isfinite(inverse)) {
    scale_ = range / kHighestByte;
    kernels.to_bytes(exact_.data(), low.data(), groups_, inverse, bytes_.data());
    error_bound_ = kHalfStep * scale_ * groups + rounding;
  } else {  // entries that differ by less than 1e-36: all bytes stay 0
    scale_ = range;
    error_bound_ = double{range} * groups + rounding;
  }
  // Two keys whose float scores are in one order have byte sums within twice the error of that order. The
  // bound holds for offset + scale * sum, which the sums alone follow to less.
  margin_ = static_cast<uint32_t>(
      std::min<double>(std::ceil(2 * error_bound_ / scale_), std::numeric_limits<uint32_t>::max()));
}

}  // namespace kvcodec
