// Bits for quantizers of different costs, by Lagrangian: the textbook's optimal bit allocation (Gersho and Gray, "Vector
// Quantization and Signal Compression", 1992, section 8.3) in whole bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcodec {

/// Gives each quantizer a whole number of bits from `least` to `most`, `total` in all, so that the sum of
/// costs[i] * 4^-bits[i] is smallest: each bit cuts an error's energy to a quarter. A total that the two
/// limits do not allow is replaced by the nearest that they allow. costs[i]: what quantizer i's error costs
/// at 0 bits; not below 0. Between equal gains, the bit goes to the earlier quantizer.
std::vector<int64_t> allocate_bits(std::span<const double> costs, int64_t total, int64_t least, int64_t most);

/// A setting of a quantizer: the bits that it takes, and what its errors cost.
struct RatePoint {
  double bits = 0, cost = 0;
};

/// Settings of two quantizers that are best together, from the fewest bits to the most, as indices into their curves. Of
/// each pair there is a multiplier with which no other pair has a smaller sum of costs and bits: both quantizers' lower
/// convex hulls, merged by slope. Each step changes one of the two. curves: in any order, not empty.
std::vector<std::array<size_t, 2>> best_pairs(const std::array<std::vector<RatePoint>, 2>& curves);

}  // namespace kvcodec
