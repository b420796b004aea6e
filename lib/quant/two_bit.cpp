#include "lib/quant/two_bit.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/quant/grouped.hpp"
#include "lib/quant/two_bit_kernels.hpp"

namespace kvcodec {

namespace two_bit_kernels::scalar {
/// Nothing is fused.
static float value_at(const Row& row, size_t j) {
  const unsigned level = row.levels[j / 4] >> (6 - 2 * (j % 4)) & 3;
  return f16_to_float(row.zeros[j / kGroup]) +
         static_cast<float>(level) * f16_to_float(row.scales[j / kGroup]);
}

static void decode(const Row& row, float* out) {
  for (size_t j = 0; j < row.dims; ++j) out[j] = value_at(row, j);
}

static void decode_signed(const Row& row, const Signs& signs, float* out) {
  for (size_t j = 0; j < row.dims; ++j) {
    const float middle = signs.center[j], magnitude = signs.alpha[j] * value_at(row, j);
    out[j] = (signs.bits[j / 8] >> (7 - j % 8)) & 1 ? middle + magnitude : middle - magnitude;
  }
}

const Table& table() {
  static constexpr Table kTable = {range, refine, levels, decode, decode_signed};
  return kTable;
}

}  // namespace two_bit_kernels::scalar

/// Rows a thread quantizes at a time.
constexpr size_t kRowsTogether = 1024;

static const two_bit_kernels::Table& kernels() {
  using namespace two_bit_kernels;
  return pick(scalar::table, avx2::table, avx512::table)();
}

static two_bit_kernels::Row row_of(const ConstTwoBitRows& rows, size_t i, size_t dims) {
  return {rows.levels.row(i).data(), rows.scales.row(i).data(), rows.zeros.row(i).data(), dims};
}

template <class Rows>
static void check_shape(const Rows& coded, size_t rows, size_t dims) {
  const auto fits = [&](const auto& view, size_t cols) { return view.rows() == rows && view.cols() == cols; };
  if (!fits(coded.levels, two_bit_row_bytes(dims)) || !fits(coded.scales, two_bit_groups(dims)) ||
      !fits(coded.zeros, two_bit_groups(dims)))
    throw failed("levels ({}, {}), scales ({}, {}) and zeros ({}, {}) do not fit {} rows of {} channels",
                 coded.levels.rows(), coded.levels.cols(), coded.scales.rows(), coded.scales.cols(),
                 coded.zeros.rows(), coded.zeros.cols(), rows, dims);
}

/// A grid of least weighed error, as it is stored; the one given where f16 does not hold it.
static Grid refined(const Grid& grid, const float* x, const float* weights, size_t count,
                    const two_bit_kernels::Table& table) {
  if (!(grid.scale > 0)) return grid;
  Grid better = grid;
  table.refine(x, weights, count, &better.zero, &better.scale);
  better = {f16_to_float(f16_from_float(better.scale)), f16_to_float(f16_from_float(better.zero))};
  return better.scale > 0 && std::isfinite(better.scale) && std::isfinite(better.zero) ? better : grid;
}

void quantize_two_bit(MatrixView<const float> rows, MatrixView<const float> weights, const TwoBitRows& out) {
  check_shape(out, rows.rows(), rows.cols());
  if (weights.rows() > 0 && weights.cols() != rows.cols())
    throw failed("weights of {} channels for {}", weights.cols(), rows.cols());
  const two_bit_kernels::Table& table = kernels();
  parallel_each(rows.rows(), kRowsTogether, [&](size_t i) {
    for (size_t first = 0, group = 0; first < rows.cols(); first += kTwoBitGroup, ++group) {
      const float* x = rows.row(i).data() + first;
      const size_t count = std::min(kTwoBitGroup, rows.cols() - first);
      float low, high;
      table.range(x, count, &low, &high);
      Grid grid = fit_grid(low, high, 2, DType::f16);
      if (weights.rows() > 0)
        grid = refined(grid, x, weights.row(i % weights.rows()).data() + first, count, table);
      // Both are values of f16: storing them is exact.
      out.scales(i, group) = f16_from_float(grid.scale);
      out.zeros(i, group) = f16_from_float(grid.zero);
      table.levels(x, count, grid.zero, grid.scale > 0 ? grid.scale : 1,
                   out.levels.row(i).data() + first / 4);
    }
  });
}

void dequantize_two_bit(const ConstTwoBitRows& rows, MatrixView<float> out) {
  check_shape(rows, out.rows(), out.cols());
  const auto decode = kernels().decode;
  for (size_t i = 0; i < out.rows(); ++i) decode(row_of(rows, i, out.cols()), out.row(i).data());
}

void dequantize_signed_row(const ConstTwoBitRows& rows, size_t row, std::span<const uint8_t> signs,
                           std::span<const float> alpha, std::span<const float> center,
                           std::span<float> out) {
  const size_t dims = out.size();
  check_shape(rows, rows.levels.rows(), dims);
  if (row >= rows.levels.rows()) throw failed("row {} of {}", row, rows.levels.rows());
  if (signs.size() != (dims + 7) / 8 || alpha.size() != dims || center.size() != dims)
    throw failed("{} bytes of signs, {} maxima and {} centres do not fit {} channels", signs.size(),
                 alpha.size(), center.size(), dims);
  kernels().decode_signed(row_of(rows, row, dims), {signs.data(), alpha.data(), center.data()}, out.data());
}

}  // namespace kvcodec
