// CUDA implementation of lib/linalg/nearest.hpp: which of k entries is nearest to each of n rows.
//
// Ids and scores are lib's, bit for bit. All products are computed roughly on the matrix units, in f16 with
// sums in f32, and of each row and each 128 entries only the best, its id and the second best score are kept;
// what a bound on the error by Cauchy and Schwarz,
//   |<x, e> - <x', e'>| <= |x - x'| |e| + |x'| |e - e'| + the roundings of the sums,
// leaves in question is scored exactly, as lib does. Rows and entries are scaled by powers of two for f16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/core/view.hpp"

namespace kvcodec::cuda {

/// Rows in device memory, ready for any number of searches.
class DeviceMatrix {
 public:
  /// (n, d), finite, copied. Throws Error(failed) for d = 0, d above 2^15 or n above 2^31.
  explicit DeviceMatrix(MatrixView<const float> rows);
  ~DeviceMatrix();
  DeviceMatrix(DeviceMatrix&&) noexcept;
  DeviceMatrix& operator=(DeviceMatrix&&) noexcept;
  size_t rows() const;
  size_t cols() const;
  /// (rows, cols) in device memory, for launches.
  const float* data() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// As kvcodec::ProductSearch::best and best_products. bias: one per entry, or empty; scores: one per row, or
/// empty. Throws Error(failed) if there is no entry or shapes do not fit.
void best_products(const DeviceMatrix& rows, const DeviceMatrix& entries, std::span<const float> bias,
                   std::span<uint32_t> ids, std::span<float> scores);
void best_products(MatrixView<const float> rows, MatrixView<const float> entries, std::span<const float> bias,
                   std::span<uint32_t> ids, std::span<float> scores);

/// out[c] = the mean of rows ids[offsets[c]] ... ids[offsets[c + 1] - 1], summed in double in this order, as
/// kvcodec::mean_of; out rows without any are left alone. ids: below rows.rows().
void means_of(const DeviceMatrix& rows, std::span<const uint64_t> offsets, std::span<const uint32_t> ids,
              MatrixView<float> out);

}  // namespace kvcodec::cuda
