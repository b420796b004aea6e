// CUDA implementation of lib/sparse/omp.hpp: orthogonal matching pursuit of thousands of signals at once.
//
// Codes are lib's, bit for bit. Decisions there depend on inner products of atoms and residuals in float,
// whose order lib fixes, and on a least-squares fit in double: here they are the same numbers. Only the
// search for candidate atoms differs. In every round all residuals are multiplied with all atoms on the
// matrix units, in f16 with sums in f32; of each residual and each 256 atoms only the two largest products
// are kept; candidates within a bound on their error are compared by lib's products. Signals of a batch take
// their steps together.
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

#include "cuda/omp/omp.cuh"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/view.hpp"
#include "lib/sparse/omp.hpp"

namespace kvcodec::cuda {

/// A dictionary in device memory, ready for pursuits.
class OmpDictionary {
 public:
  OmpDictionary() = default;
  /// As kvcodec::Omp's: (n, m), 1 <= n < 2^31, copied. Throws Error(failed) for m above 2^15.
  explicit OmpDictionary(MatrixView<const float> atoms);

  /// Room for (n, m); Throws Error(failed) for sizes that a device does not take.
  void resize(size_t n, size_t m);
  /// Copies atoms (n, m) whose norms were checked, and prepares them.
  void assign(MatrixView<const float> atoms, const Stream& stream) {
    resize(atoms.rows(), atoms.cols());
    const PackedRows rows(atoms, atoms_.stride);
    rows_.upload(rows.values(), stream);
    prepare(stream);
    stream.synchronize();  // `rows` ends here
  }
  /// Prepares rows() anew, after a kernel changed them. Zeros stand behind the width. Drops the inner products.
  void prepare(const Stream& stream) {
    atoms_.gram = nullptr;
    largest_.fill(0, stream);
    stream.run("rounding atoms", run_omp_atoms, atoms_, rough_.data(), energies_.data(), largest_.data());
  }
  /// Computes the inner products between atoms, 4 n^2 bytes, unless they are there. They save time, and change nothing.
  void build_gram(const Stream& stream) {
    if (atoms_.gram) return;
    stream.run("inner products of atoms", run_omp_gram, atoms_,
               gram_.sized(checked_mul(atoms_.count, atoms_.count)));
    atoms_.gram = gram_.data();
  }

  DeviceBuffer<float>& rows() { return rows_; }
  const DeviceBuffer<float>& rows() const { return rows_; }
  const OmpAtoms& device() const { return atoms_; }

 private:
  OmpAtoms atoms_;
  DeviceBuffer<float> rows_, gram_, largest_;
  DeviceBuffer<uint16_t> rough_;
  DeviceBuffer<double> energies_;
};

/// Signals in device memory.
struct OmpSignals {
  const float* rows;  ///< (count, width)
  size_t count;
  size_t first = 0;  ///< number of the first one in errors
};

/// Codes of a batch in device memory, as SparseCodes.
struct OmpCodes {
  DeviceBuffer<uint32_t> ids, counts;  ///< (count, sparsity); count
  DeviceBuffer<float> coefficients;    ///< (count, sparsity)
  DeviceBuffer<double> residuals;      ///< count
};

/// Codes batches; keeps its memory.
class OmpBatches {
 public:
  /// Throws Error(usage) for options that a device or this dictionary does not take.
  static void check(const OmpDictionary& dictionary, const OmpOptions& options) {
    options.check(dictionary.device().width, dictionary.device().count);
    if (options.sparsity > int64_t{kOmpMaxTaken})
      throw usage_error("sparsity is {}; a device takes up to {}, the CPU any", options.sparsity,
                        kOmpMaxTaken);
  }

  /// Signals of a batch for `count` of them: whole tiles for all multiprocessors, in half of the memory
  /// that is free or held by this already. Throws OutOfMemory if that is too little for one signal.
  size_t at_once(const OmpDictionary& dictionary, const OmpOptions& options, size_t count) const;

  /// At most at_once() signals. Returns when the codes are there.
  void run(const OmpDictionary& dictionary, const OmpOptions& options, const OmpSignals& signals,
           OmpCodes& codes, const Stream& stream);

 private:
  DeviceBuffer<float> signals_, residuals_, factors_, norms_, errors_;
  DeviceBuffer<double> exact_, inverse_, x_, z_, energies_, left_;
  DeviceBuffer<uint16_t> rough_;
  DeviceBuffer<uint32_t> excluded_, done_, active_, flags_;
  DeviceBuffer<int32_t> exponents_;
  DeviceBuffer<OmpPeak> peaks_;
  uint64_t held_ = 0;  // bytes
};

/// True if inner products of atoms fit, and cost less than they save for that many signals with s atoms each.
bool gram_pays(const OmpDictionary& dictionary, uint64_t signals, int64_t s);

/// The codes of signals in host memory: as kvcodec::Omp::encode, its errors too. Throws Error(usage) for more than
/// 1024 atoms per signal. Device memory: that of a batch of signals, at most half of the free memory.
SparseCodes sparse_codes(const OmpDictionary& dictionary, MatrixView<const float> signals,
                         const OmpOptions& options);

}  // namespace kvcodec::cuda
