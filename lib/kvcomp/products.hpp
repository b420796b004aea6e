// Products with blocks of symbols that are never turned into floats (KVComp, section 3.3.2: decompression
// fused with the matrix-vector product). The steps and origins of dequantization are applied to the vectors
// instead: a key is (symbol - 127 + origin[c]) * step[c], so
//   q.k = sum over c of (symbol[c] - 127) * (q[c] step[c])  +  sum over c of origin[c] * (q[c] step[c]),
// where the second sum is the same for all tokens of a block. Weights of tokens are multiplied by the steps of
// values in the same way.
#pragma once

#include <cstdint>

#include "lib/core/view.hpp"

namespace kvcodec {

/// out(g, r) += sum over i of (runs(r, i) - 127) * vectors(g, i), in float32, for symbols up to 254. runs:
/// (rows, n); vectors: (count, n); out: (count, rows). The order of the sum depends on the instruction set.
void multiply_symbols(MatrixView<const uint8_t> runs, MatrixView<const float> vectors, MatrixView<float> out);

}  // namespace kvcodec
