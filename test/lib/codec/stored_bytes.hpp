// Sizes of codes in memory.
#pragma once

#include <cstdint>

#include "lib/codec/encoded.hpp"

namespace kvcodec::test {

/// Stored bytes of a category; index streams count unpacked.
inline uint64_t stored_bytes(const Encoded& encoded, Category category) {
  uint64_t total = 0;
  for (const StreamSpec& spec : encoded.specs())
    if (spec.category == category) total += encoded.bytes(spec.name).size();
  return total;
}

}  // namespace kvcodec::test
