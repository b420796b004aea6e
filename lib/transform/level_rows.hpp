// Rows of levels, packed as a book stores them: what few components need is unpacked alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"

namespace kvcodec {

/// Levels of up to so many bits are odd, and so has 1 bit two of them; levels of more bits, at most kMaxLevelBits, are all numbers.
inline constexpr int kOddLevelBits = 4, kMaxLevelBits = 15;

/// Rows of levels: value = level * scale of its row. Code c of b bits is the level 2 c + 1 - 2^b up to kOddLevelBits, else c - 2^(b - 1).
/// A row's codes stand one behind the other, most significant bit first, up to a whole byte.
class LevelRows {
 public:
  LevelRows() = default;
  /// A row for each number of bits, 1 to kMaxLevelBits, of the least level. Several threads may set rows of their own.
  LevelRows(std::vector<uint8_t> bits, size_t cols);
  void set(size_t i, std::span<const int16_t> levels, float scale);
  /// As packed() and the others gave them. Throws Error(bad_input) for numbers of bits or bytes, and bits behind a row, that do not fit.
  LevelRows(std::vector<uint8_t> bits, size_t cols, std::span<const uint8_t> packed,
            std::vector<float> scales);

  size_t rows() const { return bits_.size(); }
  size_t cols() const { return cols_; }
  const std::vector<uint8_t>& bits() const { return bits_; }
  const std::vector<float>& scales() const { return scales_; }
  const std::vector<uint8_t>& packed() const { return packed_; }

  /// Row i: out (cols()).
  void levels(size_t i, std::span<int16_t> out) const;
  void floats(size_t i, std::span<float> out) const;
  /// Keeps only these rows, given in rising order.
  void keep(std::span<const uint32_t> rows);

 private:
  size_t begin(size_t i) const { return ends_[i]; }
  size_t bytes(size_t i) const { return ends_[i + 1] - ends_[i]; }

  size_t cols_ = 0;
  std::vector<uint8_t> bits_;
  std::vector<float> scales_;
  std::vector<size_t> ends_{0};  // of the rows before each, in packed_
  std::vector<uint8_t> packed_;
};

/// Levels of 8 bits, from -127 to 127.
LevelRows round_to_byte_rows(MatrixView<const float> rows);
Matrix<float> floats_of(const LevelRows& rows);

}  // namespace kvcodec
