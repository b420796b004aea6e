// Operations of the forward pass on single rows between its matrix products, and their derivatives. All in float, sums in a
// fixed order of 16 lanes: the same bits with any instruction set.
#pragma once

#include <span>

#include "lib/model/config.hpp"

namespace kvcodec {

/// out = x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019). All of one size; out may be x.
/// The mean is summed in double.
void rms_norm(std::span<const float> x, std::span<const float> weight, double epsilon, std::span<float> out);

/// out = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias (Ba et al. 2016). As rms_norm.
void layer_norm(std::span<const float> x, std::span<const float> weight, std::span<const float> bias,
                double epsilon, std::span<float> out);

/// x = activation(x), times up unless that is empty. silu: x / (1 + exp(-x)), relative error at most 3e-7 where it is above
/// 1.1e-36 in magnitude, smaller results may become 0; gelu (Hendrycks and Gimpel 2016): x times the normal distribution
/// function, and gelu_tanh its approximation with 1 / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))). clamped_swiglu needs
/// `up`: with x at most 7 and up within -7..7, x / (1 + exp(-1.702 x)) * (up + 1).
void activate(Activation activation, std::span<float> x, std::span<const float> up);

/// x = cap * tanh(x / cap). Relative error at most 4e-7.
void soft_cap(std::span<float> x, float cap);

/// x = exp(x) for x <= 0. Relative error at most 1e-7; 0 below -87.33, where floats become subnormal. NaN
/// stays NaN.
void exp_nonpositive(std::span<float> x);

/// x += addend.
void add_to(std::span<float> x, std::span<const float> addend);

/// x *= factor.
void scale(std::span<float> x, float factor);

/// out = x * factor.
void scale(std::span<const float> x, float factor, std::span<float> out);

/// The sum, and the sum of the products of elements, both in double, in which products of floats are exact.
double sum(std::span<const float> x);
double dot(std::span<const float> x, std::span<const float> y);

/// Turns one head by the angles whose cosines and sines are given (head.size() / 2 each), half-split layout
/// (see rope.hpp).
void turn_pairs(std::span<float> head, std::span<const float> cosines, std::span<const float> sines);

/// Cosines and sines of position * frequencies[j], a product that is rounded to float first (see rope.hpp). All
/// of one size. Within one unit of the last place, and the same on every machine, for angles up to 2^24; beyond,
/// errors grow with the angle, and above 2^49 the results are undefined.
void cosines_sines(float position, std::span<const float> frequencies, std::span<float> cosines,
                   std::span<float> sines);

/// One block of a softmax that is computed block by block (Milakov and Gimelshein 2018): a running maximum
/// and sum.
struct SoftmaxState {
  float max = -__builtin_inff();
  float sum = 0;
};

/// Replaces scores by exp(score - m), m being the maximum of this block and all before it, and brings `state`
/// up to date. Returns the factor exp(old m - m) by which everything weighted with earlier blocks must be
/// scaled. scores.size() is a multiple of 16; masked places hold -infinity and become 0. At least one score,
/// here or before, is not masked.
float softmax_block(std::span<float> scores, SoftmaxState& state);

// The backward pass: derivatives by inputs from those by results. Sums are in double.

/// gradient: in, by the result of rms_norm(x); out, by x. All of one size.
void rms_norm_back(std::span<const float> x, std::span<const float> weight, double epsilon,
                   std::span<float> gradient);

/// The same of layer_norm, whose bias does not matter.
void layer_norm_back(std::span<const float> x, std::span<const float> weight, double epsilon,
                     std::span<float> gradient);

/// True if activate_back() knows it.
inline bool has_derivative(Activation activation) { return activation != Activation::clamped_swiglu; }

/// gradient: by activation(x) * up, or by activation(x) if `up` is empty. Replaces x by the derivatives by x, and
/// `up` by those by `up`. Throws Error(failed) for activations without has_derivative().
void activate_back(Activation activation, std::span<const float> gradient, std::span<float> x,
                   std::span<float> up);

}  // namespace kvcodec
