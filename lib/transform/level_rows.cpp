#include "lib/transform/level_rows.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/core/error.hpp"
#include "lib/core/mapped.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"

namespace kvcodec {
namespace {

constexpr size_t kRowGrain = 64;
constexpr float kLargestByte = 127;

/// A code's level is first + distance * code.
struct LevelCode {
  explicit LevelCode(uint8_t bits)
      : first(bits > kOddLevelBits ? -(1 << (bits - 1)) : 1 - (1 << bits)),
        distance(bits > kOddLevelBits ? 1 : 2) {}
  int first, distance;
};

/// 0, and the bytes of all rows up to each.
std::vector<size_t> ends_of(std::span<const uint8_t> bits, size_t cols) {
  std::vector<size_t> ends{0};
  for (const uint8_t own : bits) {
    if (own < 1 || own > kMaxLevelBits) throw bad_input("{} bits; there are 1 to {}", own, kMaxLevelBits);
    ends.push_back(ends.back() + packed_bytes(cols, own));
  }
  return ends;
}

}  // namespace

LevelRows::LevelRows(std::vector<uint8_t> bits, size_t cols)
    : cols_(cols),
      bits_(std::move(bits)),
      scales_(bits_.size()),
      ends_(ends_of(bits_, cols)),
      packed_(ends_.back()) {}

LevelRows::LevelRows(std::vector<uint8_t> bits, size_t cols, std::span<const uint8_t> packed,
                     std::vector<float> scales)
    : cols_(cols), bits_(std::move(bits)), scales_(std::move(scales)), ends_(ends_of(bits_, cols)) {
  if (packed.size() != ends_.back() || scales_.size() != rows())
    throw bad_input("{} bytes and {} scales for {} rows of {} bytes", packed.size(), scales_.size(), rows(),
                    ends_.back());
  packed_.assign(packed.begin(), packed.end());
  for (size_t i = 0; i < rows(); ++i)
    if (const size_t used = cols * bits_[i] % 8;
        used > 0 && (packed_[ends_[i + 1] - 1] & (0xff >> used)) != 0)
      throw bad_input("there are bits behind row {}", i);
}

void LevelRows::set(size_t i, std::span<const int16_t> levels, float scale) {
  const LevelCode code(bits_[i]);
  const auto codes = mapped<uint16_t>(
      levels, [&](int16_t level) { return static_cast<uint16_t>((level - code.first) / code.distance); });
  pack_bits(codes, bits_[i], 0, std::span(packed_).subspan(begin(i), bytes(i)));
  scales_[i] = scale;
}

void LevelRows::levels(size_t i, std::span<int16_t> out) const {
  std::vector<uint16_t> codes(cols_);
  unpack_bits(std::span(packed_).subspan(begin(i), bytes(i)), 0, bits_[i], 0, codes);
  const LevelCode code(bits_[i]);
  std::ranges::transform(codes, out.begin(), [&](uint16_t own) {
    return static_cast<int16_t>(own * code.distance + code.first);
  });
}

void LevelRows::floats(size_t i, std::span<float> out) const {
  std::vector<int16_t> row(cols_);
  levels(i, row);
  std::ranges::transform(row, out.begin(),
                         [scale = scales_[i]](int16_t level) { return static_cast<float>(level) * scale; });
}

void LevelRows::keep(std::span<const uint32_t> rows) {
  LevelRows kept(mapped<uint8_t>(rows, [&](uint32_t i) { return bits_[i]; }), cols_);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(&packed_[begin(rows[i])], bytes(rows[i]), &kept.packed_[kept.begin(i)]);
    kept.scales_[i] = scales_[rows[i]];
  }
  *this = std::move(kept);
}

LevelRows round_to_byte_rows(MatrixView<const float> rows) {
  LevelRows result(std::vector<uint8_t>(rows.rows(), 8), rows.cols());
  parallel_each(rows.rows(), kRowGrain, [&](size_t i) {
    float largest = 0;
    for (const float value : rows.row(i)) largest = std::max(largest, std::abs(value));
    const float scale = largest > 0 ? largest / kLargestByte : 1;
    result.set(i,
               mapped<int16_t>(rows.row(i),
                               [&](float value) {
                                 return static_cast<int16_t>(
                                     std::clamp(std::nearbyint(value / scale), -kLargestByte, kLargestByte));
                               }),
               scale);
  });
  return result;
}

Matrix<float> floats_of(const LevelRows& rows) {
  Matrix<float> floats(rows.rows(), rows.cols());
  parallel_each(floats.rows(), kRowGrain, [&](size_t i) { rows.floats(i, floats.row(i)); });
  return floats;
}

}  // namespace kvcodec
