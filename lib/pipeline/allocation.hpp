// Bits for quantizers of different costs, by Lagrangian: the textbook's optimal bit allocation (Gersho and Gray, "Vector
// Quantization and Signal Compression", 1992, section 8.3) in whole bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcodec {

/// Whole bits for each of some quantizers, `total` of all together, so that the sum of costs[i] * 4^-bits[i] is the least that
/// there is: an error's energy falls to a quarter with each bit. Between least and most each; the total is cut to what these
/// allow. costs: of the errors that no bits leave; not below 0. Of equal gains the quantizer that stands first has the bit.
std::vector<int64_t> allocate_bits(std::span<const double> costs, int64_t total, int64_t least, int64_t most);

}  // namespace kvcodec
