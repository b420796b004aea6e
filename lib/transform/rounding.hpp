// A basis' vectors in few bits: those of components of large variance in up to 15, most of them in 1 to 5.
//
// A vector u becomes u + e. Where a token has y of it, it comes back with an error of y e. So a vector of variance v costs v e'e, and as reverse
// water-filling gives bits to components, a vector gets another bit while that takes more than a bound off its cost.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/transform/level_rows.hpp"

namespace kvcodec {

/// The bound by default, of a component's error at the finest step.
inline constexpr double kVectorError = 0.4;

/// The fraction of a vector's energy that levels of so many bits leave, and about the variance of a component whose vector got them, in bounds.
double left_by_rounding(int bits);
double variance_for(int bits);

/// Bits of the levels of vectors with these variances.
std::vector<uint8_t> bits_of_vectors(std::span<const double> variances, double bound);

/// These vectors of length 1, (bits.size(), width), with levels of so many bits; again of length 1.
LevelRows round_vectors(MatrixView<const float> vectors, std::span<const uint8_t> bits);

}  // namespace kvcodec
