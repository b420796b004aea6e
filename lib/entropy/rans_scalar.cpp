// The reference variant.
#include "lib/entropy/rans_kernels.hpp"

namespace kvcodec::rans_kernels::scalar {
namespace {

template <class Symbol>
void decode_group(const DecodeTable& table, Segment<Symbol>& segment) {
  const uint32_t mask = (1u << table.scale) - 1;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    uint32_t& x = segment.states[lane];
    const uint32_t slot = x & mask;
    if (table.narrow) {
      const uint32_t entry = table.narrow[slot];
      segment.out[lane] = static_cast<Symbol>(entry & 0xff);
      x = (entry >> 20) * (x >> table.scale) + (entry >> 8 & 0xfff);
    } else {
      const uint16_t symbol = table.symbols[slot];
      const uint32_t range = table.ranges[symbol];
      segment.out[lane] = static_cast<Symbol>(symbol);
      x = (range & 0xffff) * (x >> table.scale) + slot - (range >> 16);
    }
  }
  for (uint32_t& x : segment.states)
    if (x < kLowestState) {
      x = x << 16 | segment.words[0] | static_cast<uint32_t>(segment.words[1]) << 8;
      segment.words += 2;
    }
  segment.out += kLanes;
}

}  // namespace

template <class Symbol>
void decode(const DecodeTable& table, Segment<Symbol>* segments, size_t count, size_t groups) {
  for (size_t i = 0; i < count; ++i)
    for (size_t group = 0; group < groups; ++group) decode_group(table, segments[i]);
}
template void decode(const DecodeTable&, Segment<uint8_t>*, size_t, size_t);
template void decode(const DecodeTable&, Segment<uint16_t>*, size_t, size_t);

}  // namespace kvcodec::rans_kernels::scalar
