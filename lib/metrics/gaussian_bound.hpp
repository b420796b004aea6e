// The least error that any code of a given rate can have on Gaussian data: reverse water-filling over the
// variances of its independent components (Cover and Thomas, "Elements of Information Theory", section
// 10.3.3). With water level w, a component of variance v gets max(0, log2(v / w) / 2) bits and an error of
// min(v, w).
//
// Of all data with a given covariance, Gaussian data is the hardest. So a code for other data may do better
// than this bound, but not if it uses no more than the covariance. The mean is taken as known: it costs
// nothing per token. A covariance that was estimated from n rows of width m
// is too narrow in some directions: at 4 bits and n = 2m the bound of white noise comes out 1.4 dB too good,
// at n = 8m 0.3 dB; at n <= m it means nothing. What tokens and layers have in common is left out.
#pragma once

#include <cstddef>
#include <span>

namespace kvcodec {

/// The least mean squared error per value at `bits` bits per value on average, of independent components with
/// these variances (those below 0 by rounding count as 0). 0 without components.
double gaussian_distortion(std::span<const double> variances, double bits);

/// The least bits per value at a mean squared error of `distortion` > 0 per value: the inverse.
double gaussian_rate(std::span<const double> variances, double distortion);

}  // namespace kvcodec
