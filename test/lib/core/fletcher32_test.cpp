#include <vector>

#include "lib/core/digest.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace fletcher32_test {

using namespace kvcodec;

namespace {

/// Fletcher's sums word by word from the definition, with the carries folded at every step.
uint32_t by_definition(std::span<const std::byte> bytes) {
  uint32_t sum1 = 0, sum2 = 0;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    const uint32_t high = std::to_integer<uint32_t>(bytes[i]);
    const uint32_t low = i + 1 < bytes.size() ? std::to_integer<uint32_t>(bytes[i + 1]) : 0;
    sum1 += high << 8 | low;
    sum1 = (sum1 & 0xffff) + (sum1 >> 16);
    sum2 += sum1;
    sum2 = (sum2 & 0xffff) + (sum2 >> 16);
  }
  return sum2 << 16 | sum1;
}

std::vector<std::byte> random_bytes(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<std::byte> bytes(n);
  for (auto& b : bytes) b = static_cast<std::byte>(rng.next());
  return bytes;
}

}  // namespace

TEST_CASE("fletcher32: every SIMD level gives the value of the definition, any size and alignment") {
  const auto data = random_bytes(70000, 1);
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    CAPTURE(name_of(level));
    for (size_t n = 0; n < 300; ++n) {
      CAPTURE(n);
      for (const size_t shift : {0, 1, 3})
        CHECK(fletcher32(std::span(data).subspan(shift, n)) ==
              by_definition(std::span(data).subspan(shift, n)));
    }
    for (const size_t n : {8191u, 8192u, 8193u, 16384u, 16421u, 65536u, 69999u})
      CHECK(fletcher32(std::span(data).first(n)) == by_definition(std::span(data).first(n)));
  }
}

TEST_CASE("fletcher32: largest words and zeros, beyond one block") {
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    CAPTURE(name_of(level));
    for (const size_t n :
         {size_t{2}, size_t{1000}, (size_t{2} << 20) - 2, (size_t{2} << 20) + 7, (size_t{4} << 20) + 1}) {
      CAPTURE(n);
      const std::vector<std::byte> ones(n, std::byte{0xff}), zeros(n, std::byte{0});
      CHECK(fletcher32(ones) == by_definition(ones));
      CHECK(fletcher32(zeros) == 0);
      auto mixed = random_bytes(n, n);
      CHECK(fletcher32(mixed) == by_definition(mixed));
    }
  }
}

}  // namespace fletcher32_test
