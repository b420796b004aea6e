// One centroid value from the sums of its group (see codebooks in lib/selfindex/sign_codes.hpp).
#pragma once

#include <cstdint>

#include "lib/core/host_device.hpp"

namespace kvcodec {

/// Dimension i of the centroid of `code`. sum, count: of the group's values that have the code; magnitude:
/// the sum of the |sums| of all codes; tokens: the sum of all counts.
KVCODEC_HD float codebook_entry(unsigned code, unsigned i, double sum, uint64_t count, double magnitude,
                                uint64_t tokens) {
  if (count > 0) return static_cast<float>(sum / static_cast<double>(count));
  const double mean = tokens > 0 ? magnitude / static_cast<double>(tokens) : 0;
  return static_cast<float>((code >> (3 - i)) & 1 ? mean : -mean);
}

}  // namespace kvcodec
