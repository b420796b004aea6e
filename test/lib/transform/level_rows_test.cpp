#include "lib/transform/level_rows.hpp"

#include <cstdint>
#include <vector>

#include "lib/core/error.hpp"
#include "test/test.hpp"

namespace level_rows_test {

using namespace kvcodec;

namespace {

constexpr size_t kCols = 13;  // no number of bits but 8 fills whole bytes

/// A row in each number of bits, with its least and its largest level.
LevelRows all_bits() {
  std::vector<uint8_t> bits;
  for (uint8_t own = 1; own <= kMaxLevelBits; ++own) bits.push_back(own);
  LevelRows rows(bits, kCols);
  for (size_t i = 0; i < bits.size(); ++i) {
    const bool odd = bits[i] <= kOddLevelBits;
    const int least = odd ? 1 - (1 << bits[i]) : -(1 << (bits[i] - 1)), step = odd ? 2 : 1,
              codes = 1 << bits[i];
    std::vector<int16_t> levels;
    for (size_t c = 0; c < kCols; ++c)
      levels.push_back(
          static_cast<int16_t>(least + step * static_cast<int>(c == 0 ? codes - 1 : (c - 1) % codes)));
    rows.set(i, levels, static_cast<float>(i + 1));
  }
  return rows;
}

}  // namespace

TEST_CASE(
    "level rows: levels of all numbers of bits come back, from what is stored and of rows that are kept") {
  const LevelRows rows = all_bits();
  const LevelRows read(rows.bits(), kCols, rows.packed(), rows.scales());
  LevelRows kept = rows;
  kept.keep(std::vector<uint32_t>{2, 3, 14});
  REQUIRE_EQ(kept.rows(), size_t{3});
  std::vector<int16_t> levels(kCols), again(kCols);
  std::vector<float> floats(kCols);
  for (size_t i = 0; i < rows.rows(); ++i) {
    const int bits = static_cast<int>(i) + 1;
    rows.levels(i, levels), read.levels(i, again), read.floats(i, floats);
    CHECK_EQ(levels, again);
    CHECK_EQ(levels[0], bits <= kOddLevelBits ? (1 << bits) - 1 : (1 << (bits - 1)) - 1);
    CHECK_EQ(levels[1], bits <= kOddLevelBits ? 1 - (1 << bits) : -(1 << (bits - 1)));
    for (size_t c = 0; c < kCols; ++c) CHECK_EQ(floats[c], static_cast<float>(levels[c] * bits));
  }
  for (const auto& [place, row] : {std::pair{0, 2}, {1, 3}, {2, 14}}) {
    rows.levels(static_cast<size_t>(row), levels), kept.levels(static_cast<size_t>(place), again);
    CHECK_EQ(levels, again);
    CHECK_EQ(kept.scales()[static_cast<size_t>(place)], static_cast<float>(row + 1));
  }
}

TEST_CASE("level rows: other numbers of bits, bytes and scales are refused, and bits behind a row") {
  const LevelRows rows = all_bits();
  const auto refused = [&](std::vector<uint8_t> bits, std::vector<uint8_t> packed,
                           std::vector<float> scales) {
    CHECK_THROWS_AS(LevelRows(std::move(bits), kCols, packed, std::move(scales)), Error);
  };
  for (const int wrong : {0, kMaxLevelBits + 1}) {
    std::vector<uint8_t> bits = rows.bits();
    bits[4] = static_cast<uint8_t>(wrong);
    refused(bits, rows.packed(), rows.scales());
  }
  std::vector<uint8_t> fewer = rows.packed(), behind = rows.packed();
  fewer.pop_back();
  refused(rows.bits(), fewer, rows.scales());
  behind.back() |= 1;
  refused(rows.bits(), behind, rows.scales());
  refused(rows.bits(), rows.packed(), {1, 2});
}

}  // namespace level_rows_test
