// Symmetric round-to-nearest quantization of groups of values with one scale and no zero point: level q of
// -2^(bits-1) .. 2^(bits-1) - 1 stands for q * scale. What low-bit weights are usually kept in: 4 bits in
// groups of 32 with an f16 scale are 4.5 bits per value.
//
// There is one level more below zero than above. The scale is signed so that the group's value of the largest
// magnitude falls on the lowest level, whatever its own sign: all levels are used. A value is off by at most
// half the scale, and by up to a whole one if it is nearly as large as the largest and of the other sign.
// Scales are used as they will be stored, rounded away from zero, by the encoder too. Groups of zeros have
// scale 0.
#pragma once

#include <cstdint>
#include <span>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// The scale of a group in the type `stored` (f16, bf16 or f32). bits: 2..8. Throws Error(bad_input) if it is
/// beyond that type's range, and for values that are not finite.
float fit_symmetric(std::span<const float> group, unsigned bits, DType stored);

/// Groups of `group` consecutive columns within each row, the last one possibly shorter. x: (n, c);
/// scales: (n, ceil(c / group)); codes: (n, c), levels plus 2^(bits-1).
void quantize_symmetric(MatrixView<const float> x, size_t group, unsigned bits, DType stored,
                        MatrixView<float> scales, MatrixView<uint8_t> codes);

/// The inverse: out has the shape of codes.
void dequantize_symmetric(MatrixView<const uint8_t> codes, size_t group, unsigned bits,
                          MatrixView<const float> scales, MatrixView<float> out);

}  // namespace kvcodec
