#include "lib/entropy/pack.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace pack_test {

using namespace kvcodec;

namespace {

/// Sizes around groups of 8, 16-byte loads and 8-byte loads, primes, one large.
constexpr size_t kCounts[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 1009};

uint64_t codes_of(unsigned width) { return uint64_t{1} << width; }

template <class Id>
std::vector<Id> random_ids(size_t count, unsigned width, Rng& rng) {
  std::vector<Id> ids(count);
  for (Id& id : ids) id = static_cast<Id>(rng.below(codes_of(width)));
  if (count > 2) ids[count / 2] = static_cast<Id>(codes_of(width) - 1);
  return ids;
}

/// The stream that BitWriter makes of `lead` (a number of first_bit bits) and the ids.
template <class Id>
std::vector<uint8_t> reference(uint32_t lead, unsigned first_bit, const std::vector<Id>& ids,
                               unsigned width) {
  BitWriter writer;
  writer.put(lead, first_bit);
  for (const Id id : ids) writer.put(id, width);
  return writer.finish();
}

/// Packs and unpacks at every bit offset and count, with guard bytes around, against the bit streams of
/// lib/core/bits.hpp.
template <class Id>
void check_width(unsigned width) {
  Rng rng(width);
  CAPTURE(width);
  for (const size_t count : kCounts)
    for (unsigned first_bit = 0; first_bit < 17; ++first_bit) {
      const auto ids = random_ids<Id>(count, width, rng);
      const auto lead = static_cast<uint32_t>(rng.below(codes_of(first_bit)));
      const auto expected = reference(lead, first_bit, ids, width);
      std::vector<uint8_t> guarded(expected.size() + 4, 0xee);
      const auto packed = std::span(guarded).first(expected.size());
      BitWriter start;
      start.put(lead, first_bit);
      std::ranges::copy(start.finish(), guarded.begin());
      pack_bits(ids, width, 0, packed, first_bit);
      if (count > 0 && width > 0) CHECK(std::ranges::equal(packed, expected));
      for (size_t i = expected.size(); i < guarded.size(); ++i) CHECK_EQ(guarded[i], 0xee);
      for (const SimdLevel level : test::simd_levels()) {
        const test::AtLevel at(level);
        // Exactly as many bytes as needed, in a separate vector: the address sanitizer detects a read beyond it.
        const std::vector<uint8_t> exact(packed.begin(), packed.end());
        std::vector<Id> back(count, 0x55);
        unpack_bits(exact, first_bit, width, 0, back);
        CHECK(back == ids);
      }
    }
}

template <class Id>
std::string message_of_pack(std::vector<Id> ids, unsigned width, uint64_t bound) {
  std::vector<uint8_t> out(64);
  try {
    pack_bits(ids, width, bound, out);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    CHECK(std::ranges::all_of(out, [](uint8_t byte) { return byte == 0; }));
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("packing: every width, offset and count equals the bit streams, and comes back on every level") {
  for (unsigned width = 0; width <= 8; ++width) check_width<uint8_t>(width);
  for (unsigned width = 0; width <= 16; ++width) check_width<uint16_t>(width);
  for (unsigned width = 0; width <= 32; ++width) check_width<uint32_t>(width);
}

TEST_CASE("packing: 8 ids of 13 bits are 13 bytes, most significant bit first") {
  CHECK_EQ(packed_bytes(8, 13), 13);
  CHECK_EQ(packed_bytes(9, 13), 15);
  CHECK_EQ(packed_bytes(0, 13), 0);
  CHECK_EQ(packed_bytes(5, 0), 0);
  CHECK_THROWS_AS(packed_bytes(~uint64_t{0}, 2), Error);
  CHECK_THROWS_AS(packed_bytes(1, 33), Error);
  std::vector<uint8_t> out(13);
  pack_bits(std::vector<uint16_t>{0x1000, 1, 0, 0, 0, 0, 0, 0x1fff}, 13, 8192, out);
  CHECK(out == std::vector<uint8_t>{0x80, 0x00, 0x00, 0x40, 0, 0, 0, 0, 0, 0, 0, 0x1f, 0xff});
}

TEST_CASE("packing: any range of a stream comes back alone, and a stream can be continued") {
  Rng rng(31);
  for (const unsigned width : {1u, 5u, 13u, 16u, 25u, 26u, 31u}) {
    const auto ids = random_ids<uint32_t>(300, width, rng);
    std::vector<uint8_t> whole(packed_bytes(ids.size(), width));
    pack_bits(ids, width, 0, whole);
    std::vector<uint8_t> grown(whole.size());
    for (size_t first = 0; first < ids.size();) {
      const size_t count = std::min<size_t>(ids.size() - first, rng.below(40));
      pack_bits(std::span(ids).subspan(first, count), width, 0, grown, first * width);
      first += count;
    }
    CHECK(grown == whole);
    for (int i = 0; i < 100; ++i) {
      const size_t first = rng.below(ids.size() + 1), count = rng.below(ids.size() - first + 1);
      std::vector<uint32_t> part(count);
      unpack_bits(whole, first * width, width, 0, part);
      CHECK(std::equal(part.begin(), part.end(), ids.begin() + static_cast<ptrdiff_t>(first)));
    }
  }
}

TEST_CASE("packing: ids that are not below the bound are refused with their position") {
  CHECK_EQ(message_of_pack<uint16_t>({1, 2, 8191}, 13, 8192), "");
  CHECK_EQ(message_of_pack<uint16_t>({1, 2, 8192, 9}, 13, 0), "id 8192 at position 2 is not below 8192");
  CHECK_EQ(message_of_pack<uint16_t>({1, 6, 2}, 13, 6), "id 6 at position 1 is not below 6");
  CHECK_EQ(message_of_pack<uint8_t>({0, 1}, 0, 1), "id 1 at position 1 is not below 1");
  CHECK_EQ(message_of_pack<uint32_t>({~0u}, 32, 0), "");
  CHECK_EQ(message_of_pack<uint32_t>({~0u}, 32, ~0u), "id 4294967295 at position 0 is not below 4294967295");

  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    std::vector<uint16_t> ids(100, 5);
    for (const size_t bad : {0u, 50u, 99u}) {
      auto with_bad = ids;
      with_bad[bad] = 700;
      std::vector<uint8_t> packed(packed_bytes(ids.size(), 20));
      pack_bits(with_bad, 20, 0, packed);
      std::vector<uint16_t> out(ids.size());
      const std::string position = fmt::format("packed id 700 at position {} is not below 700", bad);
      CHECK_THROWS_WITH_AS(unpack_bits(packed, 0, 20, 700, out), position.c_str(), Error);
      CHECK_NOTHROW(unpack_bits(packed, 0, 20, 701, out));
      std::vector<uint8_t> bytes(ids.size());  // 700 cut to 8 bits would pass a bound of 256
      CHECK_THROWS_AS(unpack_bits(packed, 0, 20, 256, bytes), Error);
    }
  }
}

TEST_CASE("packing: too few bytes and impossible widths are refused") {
  std::vector<uint16_t> ids(8, 1);
  std::vector<uint8_t> bytes(12);
  CHECK_THROWS_AS(pack_bits(ids, 13, 0, bytes), Error);
  CHECK_THROWS_AS(unpack_bits(bytes, 0, 13, 0, ids), Error);
  CHECK_THROWS_AS(unpack_bits(bytes, 1, 12, 0, ids), Error);
  CHECK_NOTHROW(unpack_bits(bytes, 0, 12, 0, ids));
  CHECK_THROWS_AS(unpack_bits(bytes, ~uint64_t{0} - 3, 12, 0, ids), Error);
  CHECK_THROWS_AS(unpack_bits(bytes, 0, 33, 0, ids), Error);
  CHECK_THROWS_AS(pack_bits(ids, 33, 0, bytes), Error);
  CHECK_THROWS_AS(unpack_bits(bytes, 0, 17, 0, std::span(ids).first(1)), Error);  // 17 bits into 16
  CHECK_NOTHROW(unpack_bits(bytes, 96, 13, 0, std::span(ids).first(0)));
}

}  // namespace pack_test
