// Bounds on the errors of sums by cuda/prefill.
#pragma once

#include <algorithm>
#include <cstddef>

namespace kvcodec::test {

/// Channels of a score, or keys of an output, that attention of cuda/prefill sums on the matrix units before it rounds.
inline constexpr size_t kAttentionStretch = 16;

/// How far a sum of k products x w may be off, over the sum of |x w|: what of the parts is left out, and a
/// rounding for each of the up to six products of parts; for each 8 products of a stretch, the 9 numbers cut
/// off below 2^-24 of the largest and their sum after 24 bits; a rounding per stretch. Products of small
/// parts are below 2^-8 of the whole, and nowhere cut.
constexpr double prefill_sum_error(size_t k, size_t stretch) {
  const auto count = static_cast<double>(k), at_once = static_cast<double>(std::min(k, stretch));
  const double blocks = (at_once + 7) / 8 + (count + 7) / 8 * 0x1p-8;
  return (3 + 6 + 11 * blocks + 1 + count / static_cast<double>(stretch)) * 0x1p-24;
}

}  // namespace kvcodec::test
