// The backward pass of the functions of row_ops.hpp: derivatives by their inputs from those by their results.
// Sums are in double. Inside lib/model only.
#pragma once

#include <span>

#include "lib/model/config.hpp"

namespace kvcodec {

/// gradient: in, by the result of rms_norm(x); out, by x. All of one size.
void rms_norm_back(std::span<const float> x, std::span<const float> weight, double epsilon,
                   std::span<float> gradient);

/// The same of layer_norm, whose bias does not matter.
void layer_norm_back(std::span<const float> x, std::span<const float> weight, double epsilon,
                     std::span<float> gradient);

/// Whether activate_back() knows it.
bool has_derivative(Activation activation);

/// gradient: by activation(x) * up, or by activation(x) if `up` is empty. Replaces x by the derivatives by it, and
/// `up` by those by it. Throws Error(failed) for activations without has_derivative().
void activate_back(Activation activation, std::span<const float> gradient, std::span<float> x,
                   std::span<float> up);

}  // namespace kvcodec
