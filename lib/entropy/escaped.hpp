// Values that a coder's book has no symbol for: the escape stands in their place, the value itself is stored
// raw beside the codes.
#pragma once

#include <cstdint>

namespace kvcodec {

/// Symbol `position` of row `row` (a run, a segment) was the escape and stands for `value`.
struct EscapedValue {
  uint32_t row = 0;
  uint32_t position = 0;
  uint32_t value = 0;
  bool operator==(const EscapedValue&) const = default;
};

}  // namespace kvcodec
