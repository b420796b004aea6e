// Matrix products in bf16, summed in float, where the processor multiplies bf16 (AVX512-BF16, AMX): oneDNN's, so far
// as the build has it.
#pragma once

#include <cstdint>
#include <string>

#include "lib/core/view.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec {

/// Why gemm_bf16 cannot be called, to stand behind "because"; empty: it can.
std::string why_no_bf16();

/// out = x op(w), or out += x op(w). x: (n, k); w: (k, m), or (m, k) with Transpose::yes; elements bf16; out: (n, m); all
/// row-major with their strides. Every product is exact and the sums are floats, added in an order that is oneDNN's and
/// the processor's own. Runs on the calling thread. Throws Error(failed) where why_no_bf16() says something, and for
/// shapes that do not fit together.
void gemm_bf16(MatrixView<const uint16_t> x, MatrixView<const uint16_t> w, Transpose op, bool add,
               MatrixView<float> out);

}  // namespace kvcodec
