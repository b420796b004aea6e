// Pursuits of signals that are in device memory already, for wrappers that keep them there.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/omp/omp.cuh"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/view.hpp"
#include "lib/sparse/omp.hpp"

namespace kvcodec::cuda {

/// A dictionary in device memory, ready for pursuits.
class OmpDictionary {
 public:
  /// Room for (n, m); Throws Error(failed) for what a device does not take.
  void resize(size_t n, size_t m);
  /// Copies atoms (n, m) whose norms were checked, and prepares them.
  void assign(MatrixView<const float> atoms, const Stream& stream);
  /// Prepares rows() anew, after a kernel changed them. Zeros stand behind the width.
  void prepare(const Stream& stream);
  void build_gram(const Stream& stream);

  size_t atoms() const { return atoms_; }
  size_t width() const { return width_; }
  size_t stride() const { return stride_; }  ///< floats from one atom to the next
  float* rows() { return rows_.data(); }
  bool has_gram() const { return has_gram_; }
  OmpAtoms device() const;

 private:
  size_t atoms_ = 0, width_ = 0, stride_ = 0, padded_ = 0;
  bool has_gram_ = false;
  DeviceBuffer<float> rows_, gram_, largest_;
  DeviceBuffer<uint16_t> rough_;
  DeviceBuffer<double> energies_;
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
  static void check(const OmpDictionary& dictionary, const OmpOptions& options);

  /// Whether inner products of atoms cost less than they save for that many signals with s atoms each.
  static bool gram_pays(const OmpDictionary& dictionary, uint64_t signals, int64_t s);

  /// Signals of a batch for `count` of them: whole tiles for all multiprocessors, in half of what memory is
  /// free and what this holds already. Throws OutOfMemory if that is too little for one signal.
  size_t at_once(const OmpDictionary& dictionary, const OmpOptions& options, size_t count) const;

  /// signals: (count, width), count at most at_once(). `first`: what the error calls the first signal.
  /// Returns when the codes are there.
  void run(const OmpDictionary& dictionary, const OmpOptions& options, const float* signals, size_t count,
           size_t first, OmpCodes& codes, const Stream& stream);

 private:
  DeviceBuffer<float> signals_, residuals_, factors_, norms_, errors_;
  DeviceBuffer<double> exact_, inverse_, x_, z_, energies_, left_;
  DeviceBuffer<uint16_t> rough_;
  DeviceBuffer<uint32_t> excluded_, done_, active_, flags_;
  DeviceBuffer<int32_t> exponents_;
  DeviceBuffer<OmpPeak> peaks_;
  uint64_t held_ = 0;  // bytes
};

}  // namespace kvcodec::cuda
