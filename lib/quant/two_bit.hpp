// Rows of 2-bit levels: each token's channels in groups of 32 with a scale and a zero point of their own, so
// that any token is decoded alone (Self-Indexing KVCache, "Token-Wise Quantization Format", equations 9 to
// 13). The grids are those of grouped.hpp with 2 bits, or of least squares, stored in f16 and used by the encoder
// as stored. At 128 channels a row is 32 bytes of levels and 16 of scales and zeros: 3 bits per value.
//
// Levels are packed most significant bits first, four to a byte, each row on bytes of its own; bits behind
// the last channel are 0. These are the bytes of pack_bits with width 2 for a row of quantize_rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/core/view.hpp"

namespace kvcodec {

inline constexpr size_t kTwoBitGroup = 32;  ///< channels of a group

/// Bytes of a row's levels.
constexpr size_t two_bit_row_bytes(size_t dims) { return (dims + 3) / 4; }
/// Groups of a row, the last one possibly shorter.
constexpr size_t two_bit_groups(size_t dims) { return (dims + kTwoBitGroup - 1) / kTwoBitGroup; }

/// Coded rows: levels (n, two_bit_row_bytes(dims)), scales and zeros (n, two_bit_groups(dims)) in f16.
template <class Byte, class Half>
struct BasicTwoBitRows {
  MatrixView<Byte> levels;
  MatrixView<Half> scales, zeros;
};
using TwoBitRows = BasicTwoBitRows<uint8_t, uint16_t>;
using ConstTwoBitRows = BasicTwoBitRows<const uint8_t, const uint16_t>;

/// rows: (n, dims), finite. weights: (h, dims), of squared errors, row i by row i modulo h: levels, scale and zero take turns to make the
/// weighed error of each group least, from the grid between its smallest and largest value on; or no rows: that grid stays, as in the paper.
/// Threaded; the same bytes for any thread count and SIMD level. Throws Error(bad_input) for values beyond the range of f16, Error(failed)
/// for shapes that do not fit.
void quantize_two_bit(MatrixView<const float> rows, MatrixView<const float> weights, const TwoBitRows& out);

/// The inverse: zero + level * scale. Runs on the calling thread, for callers that decode a few rows.
void dequantize_two_bit(const ConstTwoBitRows& rows, MatrixView<float> out);

/// Rows stored as signs and magnitudes: levels, scales and zeros code |x - center| / alpha by channel.
/// signs: one row's sign bits, most significant bit first, 1 for + (lib/selfindex/sign_codes.hpp). alpha,
/// center: dims values each. out[j] = center[j] +- alpha[j] * (zero + level * scale), nothing fused.
void dequantize_signed_row(const ConstTwoBitRows& rows, size_t row, std::span<const uint8_t> signs,
                           std::span<const float> alpha, std::span<const float> center, std::span<float> out);

}  // namespace kvcodec
