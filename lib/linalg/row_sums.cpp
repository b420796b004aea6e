#include "lib/linalg/row_sums.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/clones.hpp"
#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/linalg/row_sums_kernels.hpp"

namespace kvcodec {

namespace row_sums_kernels::scalar {
namespace {

// Compiled once more with the instruction, for processors that have it: without it std::fma is a call of the C library.
KVCODEC_CLONES("fma")
void add_block(const float* block, const uint8_t* rows, const float* coefficients, const uint8_t* counts,
               size_t count, float* sums) {
  for (size_t i = 0; i < count; ++i)
    for (size_t k = i * kBlock; k < i * kBlock + counts[i]; ++k) {
      const float* const from = block + rows[k] * size_t{kPanel};
      for (size_t c = 0; c < kPanel; ++c)
        sums[i * kPanel + c] = std::fma(coefficients[k], from[c], sums[i * kPanel + c]);
    }
}

}  // namespace

const Table& table() {
  static constexpr Table kTable = {add_block};
  return kTable;
}

}  // namespace row_sums_kernels::scalar

using namespace row_sums_kernels;

/// Sums that are worked on together: of a panel's columns 256 KiB, which stay in the second-level cache.
constexpr size_t kSums = 512;

static size_t parts_of(size_t count, size_t part) { return (count + part - 1) / part; }

static const Table& kernels() { return pick(scalar::table, avx2::table, avx512::table)(); }

RowCoefficients::RowCoefficients(size_t rows, size_t sums)
    : rows_(rows),
      sums_(sums),
      values_(blocks() * sums * kBlock),
      rows_of_(values_.size()),
      counts_(blocks() * sums) {}

size_t RowCoefficients::blocks() const { return parts_of(rows_, kBlock); }

void RowCoefficients::append_row(std::span<const float> values) {
  if (appended_ == rows_ || values.size() != sums_)
    throw failed("{} coefficients of row {}; there are {} sums of {} rows", values.size(), appended_, sums_,
                 rows_);
  const size_t first = appended_ / kBlock * sums_;
  // Writes every value, and then moves on only if it is not zero, so that no branch depends on the values.
  for (size_t i = 0; i < sums_; ++i) {
    uint8_t& count = counts_[first + i];
    const size_t at = (first + i) * kBlock + count;
    rows_of_[at] = static_cast<uint8_t>(appended_ % kBlock);
    values_[at] = values[i];
    count = static_cast<uint8_t>(count + (values[i] != 0));
  }
  ++appended_;
}

RowSums::RowSums(size_t rows, size_t width)
    : rows_(rows),
      width_(width),
      panels_(parts_of(rows_, kBlock) * kBlock * parts_of(width_, kPanel) * kPanel) {}

void RowSums::set(size_t first, MatrixView<const float> rows) {
  if (rows.cols() != width_ || first > rows_ || rows.rows() > rows_ - first)
    throw failed("rows {} to {} of ({}, {}) are set to ({}, {})", first, first + rows.rows(), rows_, width_,
                 rows.rows(), rows.cols());
  const size_t blocks = parts_of(rows_, kBlock);
  for (size_t i = 0; i < rows.rows(); ++i)
    for (size_t column = 0; column < width_; column += kPanel)
      std::ranges::copy(
          rows.row(i).subspan(column, std::min<size_t>(kPanel, width_ - column)),
          panels_.begin() + static_cast<ptrdiff_t>((column / kPanel * blocks * kBlock + first + i) * kPanel));
}

void RowSums::add(const RowCoefficients& coefficients, std::span<const float> start,
                  MatrixView<float> out) const {
  const size_t all = coefficients.sums(), blocks = parts_of(rows_, kBlock);
  if (coefficients.rows() != rows_ || start.size() != width_ || out.rows() != all || out.cols() != width_)
    throw failed("sums ({}, {}) of ({}, {}) rows by ({}, {}) coefficients from {} on", out.rows(), out.cols(),
                 rows_, width_, coefficients.rows(), all, start.size());
  const Table& kernels = kvcodec::kernels();
  AlignedVector<float> sums(std::min(all, kSums) * kPanel);
  for (size_t first = 0; first < all; first += kSums) {
    const size_t count = std::min(kSums, all - first);
    for (size_t column = 0; column < width_; column += kPanel) {
      const size_t columns = std::min<size_t>(kPanel, width_ - column);
      for (size_t i = 0; i < count; ++i)
        std::ranges::copy(start.subspan(column, columns), sums.begin() + static_cast<ptrdiff_t>(i * kPanel));
      for (size_t block = 0; block < blocks; ++block) {
        const size_t at = block * all + first;
        kernels.add_block(panels_.data() + (column / kPanel * blocks + block) * kBlock * kPanel,
                          coefficients.rows_of_.data() + at * kBlock,
                          coefficients.values_.data() + at * kBlock, coefficients.counts_.data() + at, count,
                          sums.data());
      }
      for (size_t i = 0; i < count; ++i)
        std::copy_n(sums.begin() + static_cast<ptrdiff_t>(i * kPanel), columns,
                    out.row(first + i).begin() + static_cast<ptrdiff_t>(column));
    }
  }
}

}  // namespace kvcodec
