// CUDA implementation of lib/sparse/omp.hpp: orthogonal matching pursuit of thousands of signals at once.
//
// Codes are lib's, bit for bit. What decides there are inner products of atoms and residuals in float, whose
// order lib fixes, and a least-squares fit in double: here they are the same numbers. What is done otherwise
// is finding the atoms that could win. Every round all residuals meet all atoms on the matrix units, in f16
// with sums in f32; of each residual and each 256 atoms only the two largest products are kept; what a bound
// on their error leaves in question is compared by lib's products. Signals of a batch take their steps
// together.
//
// Why not the Gram matrix. With n atoms, s of them per signal of m values, correlations can follow through
// rows of the Gram matrix, as lib's do: k of them in round k, s^2 n / 2 entries of a signal. For n = 8192, s
// = 64 these are 67 MB of floats, 14 us at the 4.8 TB/s of an H200's memory: 0.07 M signals/s, and 0.14 M
// with entries of 16 bits. Computed anew, correlations are 2 n m s operations: 0.54 G for m = 512, 1.2 us at
// 450 TFLOP/s (three quarters of what the matrix instructions of sm_80 reach on an H200, whose own reach
// 990), and n m 2 bytes of atoms for each 128 residuals and round, 4 MB a signal from the second-level cache.
// The exact residual takes s^2 / 2 rows of m floats from there as well: 4 MB, 0.7 us at 6 TB/s. The fit is
// 0.35 MFLOP in double and 0.35 MB of memory, under 0.1 us. Together 2 us, 0.5 M signals/s, by arithmetic.
// Inner products between atoms are looked up where build_gram has put them (n^2 floats, 256 MiB); computing
// them takes another s^2 / 2 rows from the cache.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/core/view.hpp"
#include "lib/sparse/omp.hpp"

namespace kvcodec::cuda {

class DeviceOmp {
 public:
  /// As kvcodec::Omp's: (n, m), 1 <= n < 2^31, copied. Throws Error(failed) for m above 2^15.
  explicit DeviceOmp(MatrixView<const float> atoms);
  ~DeviceOmp();
  DeviceOmp(DeviceOmp&&) noexcept;
  DeviceOmp& operator=(DeviceOmp&&) noexcept;

  /// Replaces the dictionary, keeping memory; drops the inner products between atoms.
  void assign(MatrixView<const float> atoms);

  size_t atoms() const;
  size_t width() const;

  /// Device memory of the inner products between n atoms: 4 n^2 bytes. They save time, and change nothing.
  static uint64_t gram_bytes(size_t n);
  void build_gram();
  bool has_gram() const;
  /// Whether computing them costs less than it saves for that many signals with s atoms each.
  bool gram_pays(uint64_t signals, int64_t s) const;

  /// Whether encode takes these options: selection omp, and up to 1024 atoms per signal.
  static bool takes(const OmpOptions& options);

  /// As kvcodec::Omp::encode, its errors too. Throws Error(usage) for options it does not take. Device
  /// memory: what a batch of signals takes, at most half of what is free.
  SparseCodes encode(MatrixView<const float> signals, const OmpOptions& options) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec::cuda
