#include "lib/core/half.hpp"

#include <bit>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/mismatch.hpp"
#include "test/test.hpp"

namespace half_test {

using namespace kvcodec;

namespace {

constexpr DType kHalves[] = {DType::f16, DType::bf16};

/// Sizes around the widths of the vectors, primes, one large.
constexpr size_t kSizes[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 47, 64, 101, 1009};

/// Floats of every kind: all exponents, ties of both types, infinities, NaNs of any payload, subnormals of
/// both types.
std::vector<float> floats_of_every_kind() {
  Rng rng(11);
  std::vector<float> values;
  for (int i = 0; i < 300000; ++i) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(rng.next())));
  for (uint32_t half = 0; half < 0x10000; ++half)  // every 16-bit value, its neighbours and the ties between
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>((half << 16) | low));
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const uint32_t bits = std::bit_cast<uint32_t>(f16_to_float(static_cast<uint16_t>(half)));
    for (const uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu})
      values.push_back(std::bit_cast<float>(bits | low));
    values.push_back(std::bit_cast<float>(bits) + 0x1p-25f);  // ties between subnormals
    values.push_back(std::bit_cast<float>(bits) + 0x1.8p-25f);
  }
  return values;
}

}  // namespace

TEST_CASE("16-bit floats in bulk: every level gives the bits of the single conversions") {
  const std::vector<float> values = floats_of_every_kind();
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    CAPTURE(name_of(level));
    for (const DType type : kHalves) {
      CAPTURE(name_of(type));
      std::vector<uint16_t> narrowed(values.size());
      narrow(type, values, narrowed);
      test::Mismatch narrow_wrong;
      for (size_t i = 0; i < values.size(); ++i)
        narrow_wrong.compare(narrowed[i],
                             type == DType::f16 ? f16_from_float(values[i]) : bf16_from_float(values[i]), i);
      CHECK_EQ(narrow_wrong.report(), "");

      std::vector<uint16_t> patterns(0x10000);
      for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
      std::vector<float> widened(patterns.size());
      widen(type, patterns, widened);
      test::Mismatch widen_wrong;
      for (size_t i = 0; i < patterns.size(); ++i) {
        const float expected = type == DType::f16 ? f16_to_float(patterns[i]) : bf16_to_float(patterns[i]);
        widen_wrong.compare(std::bit_cast<uint32_t>(widened[i]), std::bit_cast<uint32_t>(expected), i);
      }
      CHECK_EQ(widen_wrong.report(), "");
    }
  }
}

TEST_CASE("16-bit floats in bulk: any size at any alignment, nothing written beyond") {
  constexpr size_t kMargin = 32;
  Rng rng(12);
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    CAPTURE(name_of(level));
    for (const DType type : kHalves)
      for (const size_t size : kSizes)
        for (size_t shift = 0; shift < 4; ++shift) {
          CAPTURE(size);
          CAPTURE(shift);
          std::vector<float> in(size + shift);
          for (float& value : in) value = static_cast<float>(rng.normal());
          std::vector<uint16_t> halves(size + kMargin, 0xabcd);
          narrow(type, std::span(in).subspan(shift), std::span(halves).subspan(shift, size));
          std::vector<float> out(size + kMargin, -77.0f);
          widen(type, std::span(halves).subspan(shift, size), std::span(out).subspan(shift + 1, size));
          for (size_t i = 0; i < size; ++i) CHECK_EQ(out[shift + 1 + i], round_to(type, in[shift + i]));
          for (size_t i = 0; i < halves.size(); ++i)
            if (i < shift || i >= shift + size) CHECK_EQ(halves[i], 0xabcd);
          for (size_t i = 0; i < out.size(); ++i)
            if (i < shift + 1 || i >= shift + 1 + size) CHECK_EQ(out[i], -77.0f);
        }
  }
}

TEST_CASE("16-bit floats in bulk: other types and unequal sizes are refused") {
  std::vector<uint16_t> halves(3);
  std::vector<float> values(3), longer(4);
  CHECK_THROWS_AS(widen(DType::f32, halves, values), Error);
  CHECK_THROWS_AS(widen(DType::f16, halves, longer), Error);
  CHECK_THROWS_AS(narrow(DType::u16, values, halves), Error);
  CHECK_THROWS_AS(narrow(DType::bf16, longer, halves), Error);
}

}  // namespace half_test
