// Matrices of a book in bytes: a scale for each row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"

namespace kvcodec {

/// Rows in bytes: value = level * scale of its row, levels from -127 to 127.
struct ByteRows {
  Matrix<int8_t> levels;
  std::vector<float> scales;  ///< one a row, positive
};
ByteRows round_to_byte_rows(MatrixView<const float> rows);
Matrix<float> floats_of(const ByteRows& rows);
/// Row i: out (levels.cols()).
void row_floats(const ByteRows& rows, size_t i, std::span<float> out);
/// Keeps these rows alone, rising.
void keep_rows(ByteRows& rows, std::span<const uint32_t> kept);

}  // namespace kvcodec
