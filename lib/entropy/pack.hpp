// Fixed-width packing of ids: id i takes bits [i * width, (i + 1) * width) of one continuous stream, most
// significant bit first (the bit order of lib/core/bits.hpp), so 8 ids of 13 bits are 13 bytes. The last byte
// is padded with zero bits. Width 0 is allowed for ids that can only be 0: they take no bytes.
#pragma once

#include <cstdint>
#include <ranges>
#include <span>

namespace kvcodec {

inline constexpr unsigned kMaxPackedWidth = 32;

/// ceil(count * width / 8). Throws Error(bad_input) on overflow, Error(failed) for a width above 32.
uint64_t packed_bytes(uint64_t count, unsigned width);

template <class Id>
void pack_ids(std::span<const Id> ids, unsigned width, uint64_t bound, std::span<uint8_t> out,
              uint64_t first_bit);
template <class Id>
void unpack_ids(std::span<const uint8_t> in, uint64_t first_bit, unsigned width, uint64_t bound,
                std::span<Id> out);

/// Writes ids as bits [first_bit, first_bit + ids.size() * width) of `out`; the bits of out before first_bit stay, those behind the end in
/// the last byte written become 0, so a stream can be continued where it stopped. bound: ids must be below it; 0 means 2^width. Throws
/// Error(bad_input) naming the first id that is not below both, with nothing written; Error(failed) if out is too short or width above 32.
/// ids, out below: a container of uint8_t, uint16_t or uint32_t.
template <class Ids>
void pack_bits(const Ids& ids, unsigned width, uint64_t bound, std::span<uint8_t> out,
               uint64_t first_bit = 0) {
  pack_ids(std::span<const std::ranges::range_value_t<Ids>>(ids), width, bound, out, first_bit);
}

/// Reads out.size() ids from bit first_bit of `in` on. Never reads outside `in`.
/// bound as for pack_bits. Throws Error(bad_input) if `in` ends too early or an id is not below the bound (out is then unspecified);
/// Error(failed) if width is above 32 or ids below the bound do not fit the type of out.
template <class Ids>
void unpack_bits(std::span<const uint8_t> in, uint64_t first_bit, unsigned width, uint64_t bound, Ids&& out) {
  unpack_ids(in, first_bit, width, bound, std::span(out));
}

}  // namespace kvcodec
