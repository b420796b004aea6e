#include "lib/transform/byte_rows.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

constexpr size_t kRowGrain = 16;
constexpr float kLargestLevel = 127;

}  // namespace

ByteRows round_to_byte_rows(MatrixView<const float> rows) {
  ByteRows bytes{Matrix<int8_t>(rows.rows(), rows.cols()), std::vector<float>(rows.rows())};
  parallel_for(rows.rows(), kRowGrain, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      float largest = 0;
      for (const float value : rows.row(i)) largest = std::max(largest, std::abs(value));
      const float scale = largest > 0 ? largest / kLargestLevel : 1;
      bytes.scales[i] = scale;
      for (size_t c = 0; c < rows.cols(); ++c)
        bytes.levels(i, c) = static_cast<int8_t>(
            std::clamp(std::nearbyint(rows(i, c) / scale), -kLargestLevel, kLargestLevel));
    }
  });
  return bytes;
}

Matrix<float> floats_of(const ByteRows& rows) {
  Matrix<float> floats(rows.levels.rows(), rows.levels.cols());
  parallel_for(floats.rows(), kRowGrain, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) row_floats(rows, i, floats.row(i));
  });
  return floats;
}

void row_floats(const ByteRows& rows, size_t i, std::span<float> out) {
  const float scale = rows.scales[i];
  std::ranges::transform(rows.levels.row(i), out.begin(),
                         [&](int8_t level) { return static_cast<float>(level) * scale; });
}

void keep_rows(ByteRows& rows, std::span<const uint32_t> kept) {
  ByteRows result{Matrix<int8_t>(kept.size(), rows.levels.cols()), {}};
  for (size_t i = 0; i < kept.size(); ++i) {
    std::ranges::copy(std::as_const(rows.levels).row(kept[i]), result.levels.row(i).begin());
    result.scales.push_back(rows.scales[kept[i]]);
  }
  rows = std::move(result);
}

}  // namespace kvcodec
