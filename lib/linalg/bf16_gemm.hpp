// Matrix products in bf16, summed in float, where the processor multiplies bf16 (AVX512-BF16, AMX): oneDNN's, so far
// as the build has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lib/core/view.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec {

/// Why gemm_bf16 cannot be called, to stand behind "because"; empty: it can.
std::string why_no_bf16();

/// out = x op(w), or out += x op(w). x: (n, k); w: (k, m), or (m, k) with Transpose::yes; elements bf16; out: (n, m); all
/// row-major with their strides. Every product is exact and the sums are floats, added in an order that is oneDNN's and
/// the processor's own. Runs on the calling thread. Throws Error(failed) where why_no_bf16() says something, and for
/// shapes that do not fit together. Fastest where no matrix has gaps between its rows.
void gemm_bf16(MatrixView<const uint16_t> x, MatrixView<const uint16_t> w, Transpose op, bool add,
               MatrixView<float> out);

/// A matrix that many others are multiplied with, copied once into the order in which the processor's products read it.
class PackedBf16 {
 public:
  /// w: (m, k). Throws as gemm_bf16().
  explicit PackedBf16(MatrixView<const uint16_t> w);

  size_t rows() const;
  size_t cols() const;

  /// out = x times the transpose of w, or out += that, as above. x: (n, k); out: (n, m), neither with gaps between its rows.
  friend void gemm_bf16(MatrixView<const uint16_t> x, const PackedBf16& w, bool add, MatrixView<float> out);

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;  // copies share it
};

}  // namespace kvcodec
