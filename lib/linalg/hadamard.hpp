// The Walsh-Hadamard transform in Sylvester's order: H_1 = 1, H_2n = [H_n H_n; H_n -H_n], divided by sqrt(n), so that it keeps lengths and
// is its own inverse. It spreads an outlier of one channel over all of them, which improves rounding to a common grid (Ashkboos et al.,
// "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", 2024).
#pragma once

#include <cstddef>
#include <span>

namespace kvcodec {

/// The largest power of two that divides n; n > 0.
constexpr size_t power_of_two_in(size_t n) { return n & (~n + 1); }

/// Transforms x in place, in pieces of `block` values, a power of two that divides x.size(). n log2(block)
/// additions in a fixed order: the result depends on nothing else. Throws Error(failed) for other blocks.
void hadamard(std::span<float> x, size_t block);

}  // namespace kvcodec
