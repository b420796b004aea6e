#include "lib/core/finite.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace kvcodec {
namespace {

/// The exponent of all ones. On the bit pattern, so that no compiler option about floats can optimise it
/// away.
bool non_finite(float value) { return (std::bit_cast<uint32_t>(value) & 0x7f800000u) == 0x7f800000u; }

}  // namespace

std::optional<size_t> find_non_finite(std::span<const float> values) {
  constexpr size_t kBlock = 1024;  // long enough for the compiler's vector loop, short enough to stop early
  for (size_t first = 0; first < values.size(); first += kBlock) {
    const auto block = values.subspan(first, std::min(kBlock, values.size() - first));
    uint32_t any = 0;
    for (const float value : block) any |= static_cast<uint32_t>(non_finite(value));
    if (any)
      return first +
             static_cast<size_t>(std::find_if(block.begin(), block.end(), non_finite) - block.begin());
  }
  return std::nullopt;
}

}  // namespace kvcodec
