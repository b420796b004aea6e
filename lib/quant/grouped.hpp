// Asymmetric round-to-nearest quantization of groups of values, as in KIVI (Liu et al., "KIVI: A
// Tuning-Free Asymmetric 2bit Quantization for KV Cache", ICML 2024, section 3.1): level q of 0..2^bits - 1
// stands for zero + q * scale, with zero the group's smallest value and scale its spread over 2^bits - 1.
//
// The encoder, too, uses both in their stored type (f16, say), and rounds them so that no value of the group lies more than half a step
// outside the levels: |x - dequantized| <= scale / 2 except for the rounding of the float operations themselves. Groups without spread have
// scale 0 and come back as zero, exactly if the stored type holds the value.
//
// Symmetric quantization has one scale and no zero point: level q of -2^(bits-1) .. 2^(bits-1) - 1 stands for q * scale. Low-bit weights
// are usually kept like that: 4 bits in groups of 32 with an f16 scale are 4.5 bits per value. There is one level more below zero than
// above. The scale is signed so that the group's value of the largest magnitude falls on the lowest level, whatever its own sign: all
// levels are used. A value is off by at most half the scale, and by up to a whole one if it is nearly as large as the largest and of the
// other sign. Scales are rounded away from zero. Groups of zeros have scale 0.
//
// All functions take finite values; they run on the calling thread.
#pragma once

#include <cstdint>
#include <span>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// The levels of one group.
struct Grid {
  float scale = 0;  ///< distance of neighbouring levels, >= 0
  float zero = 0;   ///< the value of level 0, <= every value of the group
};

/// The grid of values within [low, high] with 2^bits levels (bits 1..8); scale and zero are values of the
/// type `stored` (f16, bf16 or f32). Throws Error(bad_input) if one of them is beyond that type's range.
Grid fit_grid(float low, float high, unsigned bits, DType stored);

/// One group per column over all rows (keys: channels over a group of tokens).
/// x: (n, c); scales, zeros: c values each; codes: (n, c), codes < 2^bits.
void quantize_columns(MatrixView<const float> x, unsigned bits, DType stored, std::span<float> scales,
                      std::span<float> zeros, MatrixView<uint8_t> codes);

/// Codes of (n, c) values. scales, zeros: (n, ceil(c / group)); codes: (n, c).
struct GroupedRows {
  MatrixView<float> scales, zeros;
  MatrixView<uint8_t> codes;
};

/// Groups of `group` consecutive columns within each row, the last one possibly shorter (values: channels of one token). x: (n, c).
void quantize_rows(MatrixView<const float> x, size_t group, unsigned bits, DType stored,
                   const GroupedRows& out);

/// The inverses: out has the shape of codes.
void dequantize_columns(MatrixView<const uint8_t> codes, std::span<const float> scales,
                        std::span<const float> zeros, MatrixView<float> out);
void dequantize_rows(MatrixView<const uint8_t> codes, size_t group, MatrixView<const float> scales,
                     MatrixView<const float> zeros, MatrixView<float> out);

/// The scale of a group in the type `stored` (f16, bf16 or f32). bits: 2..8. Throws Error(bad_input) if it is
/// beyond that type's range, and for values that are not finite.
float fit_symmetric(std::span<const float> group, unsigned bits, DType stored);

/// Groups as in quantize_rows. x: (n, c); scales: (n, ceil(c / group)); codes: (n, c), levels plus 2^(bits-1).
void quantize_symmetric(MatrixView<const float> x, size_t group, unsigned bits, DType stored,
                        MatrixView<float> scales, MatrixView<uint8_t> codes);

/// The inverse: out has the shape of codes.
void dequantize_symmetric(MatrixView<const uint8_t> codes, size_t group, unsigned bits,
                          MatrixView<const float> scales, MatrixView<float> out);

}  // namespace kvcodec
