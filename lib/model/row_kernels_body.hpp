// The functions of row_ops.hpp, compiled three times: by row_ops.cpp for every machine and by row_kernels_avx2.cpp and
// row_kernels_avx512.cpp with wider instructions. They are plain loops without branches, which compilers make wide by themselves. Sums
// have 16 lanes, so they are the same everywhere. Products and sums are never fused. Everything is in an unnamed
// namespace, so that no file can get another's copy (see lib/core/cpu.hpp).
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"  // under sanitizers some loops stay narrow
#endif

namespace kvcodec::row_kernels {

/// One instruction set's functions.
struct Table {
  void (*rms_norm)(const float* x, const float* weight, double epsilon, float* out, size_t n);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, double epsilon, float* out,
                     size_t n);
  void (*silu_times)(float* gate, const float* up, size_t n);  ///< up: nullptr = nothing is multiplied
  void (*gelu_tanh_times)(float* gate, const float* up, size_t n);
  void (*clamped_swiglu)(float* gate, const float* up, size_t n);
  void (*soft_cap)(float* x, float cap, size_t n);
  void (*exp_nonpositive)(float* x, size_t n);
  void (*add_to)(float* x, const float* addend, size_t n);
  void (*scale)(const float* x, float factor, float* out, size_t n);  ///< out may be x
  void (*turn_pairs)(float* head, const float* cosines, const float* sines, size_t half);
  void (*cosines_sines)(float position, const float* frequencies, float* cosines, float* sines, size_t n);
  float (*softmax_block)(float* scores, float* max, float* sum, size_t n);
  double (*sum)(const float* x, size_t n);
  double (*dot)(const float* x, const float* y, size_t n);
};

KVCODEC_VARIANTS(const Table& table();)

namespace {

#define KVCODEC_INLINE [[gnu::always_inline]] inline

KVCODEC_INLINE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
KVCODEC_INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// a or b, both of which are computed: a branch would keep a loop narrow.
KVCODEC_INLINE float either(bool first, float a, float b) {
  const uint32_t mask = first ? ~0u : 0u;
  return float_of((bits_of(a) & mask) | (bits_of(b) & ~mask));
}

/// exp(x) for x <= 0: x = k ln 2 + r, |r| <= ln 2 / 2, exp(x) = 2^k exp(r).
KVCODEC_INLINE float exp_of_nonpositive(float x) {
  constexpr float kLog2OfE = 0x1.715476p+0f;
  // ln 2 in two parts; the first has so few digits that k times it is exact.
  constexpr float kLn2High = 0x1.62ep-1f, kLn2Low = 0x1.0bfbe8p-15f;
  // Adding it rounds to an integer, which then stands in the lowest bits.
  constexpr float kRound = 0x1.8p+23f;
  constexpr float kSmallest = -0x1.5d589ep+6f;  // ln of the smallest normal float
  const float shifted = x * kLog2OfE + kRound;
  const float k = shifted - kRound;
  const float r = (x - k * kLn2High) - k * kLn2Low;
  // exp(r) = 1 + r + r^2 q(r), q the minimax polynomial of degree 4 for the relative error of exp(r) on that
  // interval: 3.1e-9 before rounding (Remez, computed for this file).
  float q = 0x1.6a244cp-10f;
  q = q * r + 0x1.1239d4p-7f;
  q = q * r + 0x1.5558f2p-5f;
  q = q * r + 0x1.555492p-3f;
  q = q * r + 0x1.fffffcp-2f;
  const float mantissa = (r * r) * q + r + 1.0f;
  const float power = float_of((bits_of(shifted) + 127u) << 23);
  return either(x < kSmallest, 0, mantissa * power);
}

/// Lanes into which a row is folded: element i in lane i % 16.
constexpr size_t kLanes = 16;

/// The sum of the lanes: the upper half onto the lower one until one lane is left.
template <class Number>
KVCODEC_INLINE Number folded(Number (&lanes)[kLanes]) {
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

/// The sum of term(i) over the n elements of a row.
template <class Term>
KVCODEC_INLINE double sum_of(size_t n, const Term& term) {
  double lanes[kLanes] = {};
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  for (size_t i = whole; i < n; ++i) lanes[i - whole] += term(i);
  return folded(lanes);
}

double sum(const float* x, size_t n) {
  return sum_of(n, [&](size_t i) { return (double)x[i]; });
}

double dot(const float* x, const float* y, size_t n) {
  return sum_of(n, [&](size_t i) { return (double)x[i] * (double)y[i]; });
}

void rms_norm(const float* x, const float* weight, double epsilon, float* out, size_t n) {
  const auto factor = (float)(1.0 / sqrt(dot(x, x, n) / (double)n + epsilon));
#pragma omp simd
  for (size_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, double epsilon, float* out,
                size_t n) {
  const double mean = sum(x, n) / (double)n;
  // Squares are of distances from the rounded mean; the variance is their mean less the square of the rounding error.
  const auto centre = (float)mean;
  const double squares = sum_of(n, [&](size_t i) {
    const auto distance = (double)(x[i] - centre);
    return distance * distance;
  });
  const double off = mean - (double)centre;  // the error of rounding the mean
  const double variance = squares / (double)n - off * off;
  const auto factor = (float)(1.0 / sqrt(variance + epsilon));
#pragma omp simd
  for (size_t i = 0; i < n; ++i) out[i] = (x[i] - centre) * factor * weight[i] + bias[i];
}

/// x / (1 + exp(-u)).
KVCODEC_INLINE float times_logistic(float x, float u) {
  // With e = exp(-|u|): x / (1 + e) for u >= 0, x e / (1 + e) below. No overflow, and small results keep
  // their digits.
  const float e = exp_of_nonpositive(-fabsf(u));
  return x * either(u < 0.0f, e, 1.0f) / (e + 1.0f);
}

template <class Of>
KVCODEC_INLINE void activate_times(float* gate, const float* up, size_t n, const Of& of) {
  if (!up)
    for (size_t i = 0; i < n; ++i) gate[i] = of(gate[i]);
  else
    for (size_t i = 0; i < n; ++i) gate[i] = of(gate[i]) * up[i];
}
void silu_times(float* gate, const float* up, size_t n) {
  activate_times(gate, up, n, [](float x) { return times_logistic(x, x); });
}
void gelu_tanh_times(float* gate, const float* up, size_t n) {
  constexpr float kTwice = 0x1.988454p+0f;  // 2 sqrt(2 / pi)
  activate_times(gate, up, n,
                 [](float x) { return times_logistic(x, (x + x * x * x * 0.044715f) * kTwice); });
}

void clamped_swiglu(float* gate, const float* up, size_t n) {
  constexpr float kLimit = 7, kSteepness = 1.702f;
  for (size_t i = 0; i < n; ++i) {
    const float low = gate[i] > kLimit ? kLimit : gate[i], below = up[i] > kLimit ? kLimit : up[i];
    const float clamped = below < -kLimit ? -kLimit : below;
    gate[i] = times_logistic(low, low * kSteepness) * (clamped + 1.0f);
  }
}

KVCODEC_INLINE float tanh_of(float x) {
  const float size = fabsf(x);
  const float e = exp_of_nonpositive(size * -2.0f);
  const float far = (1.0f - e) / (e + 1.0f);
  // There the difference from 1 loses digits; the series up to x^9 is within 5e-8 of tanh.
  const float square = x * x;
  float series = 62.0f / 2835.0f;
  series = series * square - 17.0f / 315.0f;
  series = series * square + 2.0f / 15.0f;
  series = series * square - 1.0f / 3.0f;
  const float near = x + x * square * series;
  return either(size < 0.3f, near, copysignf(far, x));
}

void soft_cap(float* x, float cap, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] = tanh_of(x[i] / cap) * cap;
}

void exp_nonpositive(float* x, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] = exp_of_nonpositive(x[i]);
}

void add_to(float* x, const float* addend, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] += addend[i];
}

void scale(const float* x, float factor, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}

void turn_pairs(float* head, const float* cosines, const float* sines, size_t half) {
  float* other = head + half;
  for (size_t j = 0; j < half; ++j) {
    const float first = head[j], second = other[j];
    head[j] = first * cosines[j] - second * sines[j];
    other[j] = second * cosines[j] + first * sines[j];
  }
}

/// Cosine and sine of an angle: angle = k pi/2 + r, |r| <= pi/4, where k says which of +-sin r and +-cos r
/// they are. In double, with sums of Taylor's series whose next term is below 3e-14.
KVCODEC_INLINE void cosine_sine_of(double angle, float& cosine, float& sine) {
  // pi / 2 in three parts; the first two have so few digits (28) that k times them is exact for k < 2^25.
  constexpr double kHigh = 0x1.921fb54p+0, kMiddle = 0x1.10b4610p-30, kLow = 0x1.a62633145c06ep-58;
  // Adding it rounds to an integer, which then stands in the lowest bits.
  constexpr double kRound = 0x1.8p+52;
  const double shifted = angle * 0x1.45f306dc9c883p-1 + kRound;
  const double k = shifted - kRound;
  const double r = ((angle - k * kHigh) - k * kMiddle) - k * kLow;
  const double square = r * r;
  double s = 1.0 / 6227020800;
  s = s * square - 1.0 / 39916800;
  s = s * square + 1.0 / 362880;
  s = s * square - 1.0 / 5040;
  s = s * square + 1.0 / 120;
  s = s * square - 1.0 / 6;
  s = r + r * square * s;
  double c = -1.0 / 87178291200;
  c = c * square + 1.0 / 479001600;
  c = c * square - 1.0 / 3628800;
  c = c * square + 1.0 / 40320;
  c = c * square - 1.0 / 720;
  c = c * square + 1.0 / 24;
  c = 1.0 - 0.5 * square + square * square * c;
  const auto quarter = __builtin_bit_cast(uint64_t, shifted), sine_bits = __builtin_bit_cast(uint64_t, s),
             cosine_bits = __builtin_bit_cast(uint64_t, c);
  const uint64_t swapped = -(quarter & 1);  // all bits where sine and cosine change places
  const uint64_t exchanged = (sine_bits ^ cosine_bits) & swapped;
  cosine = (float)__builtin_bit_cast(double, (cosine_bits ^ exchanged) ^ (((quarter + 1) & 2) << 62));
  sine = (float)__builtin_bit_cast(double, (sine_bits ^ exchanged) ^ ((quarter & 2) << 62));
}

void cosines_sines(float position, const float* frequencies, float* cosines, float* sines, size_t n) {
  for (size_t j = 0; j < n; ++j) cosine_sine_of((double)(frequencies[j] * position), cosines[j], sines[j]);
}

float softmax_block(float* scores, float* max, float* sum, size_t n) {
  float new_max = *max;
#pragma omp simd reduction(max : new_max)
  for (size_t i = 0; i < n; ++i) new_max = scores[i] > new_max ? scores[i] : new_max;
  for (size_t i = 0; i < n; ++i) scores[i] = exp_of_nonpositive(scores[i] - new_max);
  float total[kLanes] = {};
  for (size_t i = 0; i < n; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) total[lane] += scores[i + lane];
  const float factor = exp_of_nonpositive(*max - new_max);
  *sum = *sum * factor + folded(total);
  *max = new_max;
  return factor;
}

#undef KVCODEC_INLINE

constexpr Table kTable = {
    rms_norm, layer_norm, silu_times, gelu_tanh_times, clamped_swiglu, soft_cap, exp_nonpositive,
    add_to,   scale,      turn_pairs, cosines_sines,   softmax_block,  sum,      dot};

}  // namespace

const Table& KVCODEC_LEVEL::table() { return kTable; }

}  // namespace kvcodec::row_kernels
