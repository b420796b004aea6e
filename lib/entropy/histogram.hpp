// Counts of symbols, and the minimum of bits that follows from them for any coder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcodec {

/// The count of each of 0..alphabet-1; alphabet values. Throws Error(bad_input) naming the first symbol that is not below `alphabet`.
std::vector<uint64_t> histogram(std::span<const uint8_t> symbols, size_t alphabet);

/// Shannon's bound for a coder that knows only these counts: sum of count * log2(total / count), in bits.
double entropy_bits(std::span<const uint64_t> counts);

}  // namespace kvcodec
