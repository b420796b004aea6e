#include "lib/entropy/pack.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "lib/core/checked.hpp"
#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/entropy/pack_kernels.hpp"

namespace kvcodec {

template <class Id>
size_t pack_kernels::scalar::unpack(const Packed&, Id*, size_t, uint32_t*) {
  return 0;  // unpack_checked's own loop has no faster one here
}

static_assert(std::endian::native == std::endian::little, "words are swapped to and from big-endian below");

static void check_width(unsigned width) {
  if (width > kMaxPackedWidth)
    throw failed("ids of {} bits cannot be packed, only of 0 to {}", width, kMaxPackedWidth);
}

/// One past the largest id allowed.
static uint64_t limit_of(unsigned width, uint64_t bound) {
  const uint64_t codes = uint64_t{1} << width;
  return bound == 0 ? codes : std::min(bound, codes);
}

/// One past the last bit of n ids that start at first_bit.
static uint64_t end_bit(uint64_t first_bit, uint64_t n, unsigned width) {
  return checked_add(first_bit, checked_mul(n, width));
}

template <class Id>
[[noreturn]] static void refuse(std::span<const Id> ids, uint64_t limit) {
  const auto bad = std::find_if(ids.begin(), ids.end(), [&](Id id) { return id >= limit; });
  throw bad_input("id {} at position {} is not below {}", *bad, bad - ids.begin(), limit);
}

/// Collects bits in a word and stores four bytes at a time.
template <class Id>
static void pack(std::span<const Id> ids, unsigned width, uint8_t* out, uint64_t first_bit) {
  uint8_t* place = out + first_bit / 8;
  unsigned count = first_bit % 8;  // bits waiting in the low end of `pending`, always fewer than 32
  uint64_t pending = count == 0 ? 0 : *place >> (8 - count);
  for (const Id id : ids) {
    pending = (pending << width) | id;
    count += width;
    if (count >= 32) {
      count -= 32;
      const uint32_t word = __builtin_bswap32(static_cast<uint32_t>(pending >> count));
      std::memcpy(place, &word, sizeof word);
      place += sizeof word;
    }
  }
  for (; count >= 8; count -= 8) *place++ = static_cast<uint8_t>(pending >> (count - 8));
  if (count > 0) *place = static_cast<uint8_t>(pending << (8 - count));
}

/// One load of eight bytes per id: 7 bits of offset and 32 of id lie within. Returns the largest id.
template <class Id>
static uint32_t unpack(std::span<const uint8_t> in, uint64_t bit, unsigned width, std::span<Id> out) {
  // Loads that would go beyond the end are from a copy of the last bytes, with zeros behind it.
  std::array<uint8_t, 16> tail{};
  const size_t tail_begin = in.size() < 8 ? 0 : in.size() - 7;
  std::copy(in.begin() + static_cast<ptrdiff_t>(tail_begin), in.end(), tail.begin());
  uint32_t largest = 0;
  for (Id& to : out) {
    const uint64_t byte = bit / 8;
    uint64_t word = 0;  // highest first
    std::memcpy(&word, byte < tail_begin ? &in[byte] : &tail[byte - tail_begin], sizeof word);
    const auto id = static_cast<uint32_t>((__builtin_bswap64(word) << (bit % 8)) >> (64 - width));
    largest = std::max(largest, id);
    to = static_cast<Id>(id);
    bit += width;
  }
  return largest;
}

uint64_t packed_bytes(uint64_t count, unsigned width) {
  check_width(width);
  const uint64_t bits = checked_mul(count, width);
  return bits / 8 + (bits % 8 != 0);
}

template <class Id>
void pack_ids(std::span<const Id> ids, unsigned width, uint64_t bound, std::span<uint8_t> out,
              uint64_t first_bit) {
  check_width(width);
  const uint64_t end = end_bit(first_bit, ids.size(), width);
  if (end / 8 + (end % 8 != 0) > out.size()) throw failed("{} bytes do not hold {} bits", out.size(), end);
  const uint64_t limit = limit_of(width, bound);
  Id largest = 0;
  for (const Id id : ids) largest = std::max(largest, id);
  if (!ids.empty() && largest >= limit) refuse(ids, limit);
  if (width > 0 && !ids.empty()) pack(ids, width, out.data(), first_bit);
}

template <class Id>
void unpack_ids(std::span<const uint8_t> in, uint64_t first_bit, unsigned width, uint64_t bound,
                std::span<Id> out) {
  check_width(width);
  const uint64_t limit = limit_of(width, bound);
  if (limit - 1 > std::numeric_limits<Id>::max())
    throw failed("ids up to {} do not fit {} bytes", limit - 1, sizeof(Id));
  const uint64_t end = end_bit(first_bit, out.size(), width);
  if (end / 8 + (end % 8 != 0) > in.size())
    throw bad_input("{} packed bytes end before bit {}", in.size(), end);
  if (out.empty()) return;
  if (width == 0) return std::fill(out.begin(), out.end(), Id{0});
  uint32_t largest = 0;
  size_t done = 0;
  if (width <= pack_kernels::kMaxWidth)
    done = pick(pack_kernels::scalar::unpack<Id>, pack_kernels::avx2::unpack<Id>)(
        {in.data(), in.size(), first_bit, width}, out.data(), out.size(), &largest);
  largest = std::max(largest, unpack(in, first_bit + done * width, width, out.subspan(done)));
  if (largest < limit) return;
  for (size_t i = 0; i < out.size(); ++i) {  // `out` may hold cut ids: look again, one by one
    uint32_t id = 0;
    unpack(in, first_bit + i * width, width, std::span(&id, 1));
    if (id >= limit) throw bad_input("packed id {} at position {} is not below {}", id, i, limit);
  }
}

template void pack_ids(std::span<const uint8_t>, unsigned, uint64_t, std::span<uint8_t>, uint64_t);
template void pack_ids(std::span<const uint16_t>, unsigned, uint64_t, std::span<uint8_t>, uint64_t);
template void pack_ids(std::span<const uint32_t>, unsigned, uint64_t, std::span<uint8_t>, uint64_t);
template void unpack_ids(std::span<const uint8_t>, uint64_t, unsigned, uint64_t, std::span<uint8_t>);
template void unpack_ids(std::span<const uint8_t>, uint64_t, unsigned, uint64_t, std::span<uint16_t>);
template void unpack_ids(std::span<const uint8_t>, uint64_t, unsigned, uint64_t, std::span<uint32_t>);

}  // namespace kvcodec
