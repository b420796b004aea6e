// A step of atoms along the gradient, for lib/sparse/train.cpp and its CUDA implementation.
#pragma once

namespace kvcodec {

/// Atoms whose norms differ from 1 by no more than this, the rounding of the entries by 2^-24 each, are left as they are.
inline constexpr double kNormRounding = 1e-6;

/// One step of adam or gradient, after a batch is coded. For each atom, gradient = sum of (factor * coefficient)
/// * residual over the signals that use it, in their order (of the sum of squared errors with a factor of -2); then with adam
///   mean = keep_mean * mean + (1 - keep_mean) * gradient,
///   variance = keep_variance * variance + (1 - keep_variance) * (gradient * gradient),
///   atom -= rate * mean / (sqrt(variance * variance_correction) + floor),
/// and without it atom -= rate * gradient. Each operation is rounded to f32.
struct GradientStep {
  bool adam = false;
  float factor = 0, rate = 0;
  float keep_mean = 0, keep_variance = 0, variance_correction = 0, floor = 0;  ///< with adam
};

}  // namespace kvcodec
