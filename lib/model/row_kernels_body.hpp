// The bodies of row_kernels.hpp, compiled three times: by row_kernels.cpp for every machine and by
// row_kernels_avx2.cpp and row_kernels_avx512.cpp with wider instructions. They are written in vectors of 16
// floats, which the compiler lays out in one, two or four registers: the lanes, hence the sums, are the same
// everywhere. Products and sums are never fused. Everything is in an unnamed namespace, so that no file can
// get another's copy (see lib/core/cpu.hpp).
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/model/row_kernels.hpp"

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions of one file only

namespace kvcodec::row_kernels {
namespace {

constexpr size_t kLanes = 16;
typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t Bits __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));
typedef float EightFloats __attribute__((vector_size(8 * sizeof(float))));
typedef float FourFloats __attribute__((vector_size(4 * sizeof(float))));
typedef double Doubles __attribute__((vector_size(8 * sizeof(double))));
typedef double FourDoubles __attribute__((vector_size(4 * sizeof(double))));
typedef uint64_t DoubleBits __attribute__((vector_size(8 * sizeof(uint64_t))));

#define KVCODEC_INLINE [[gnu::always_inline]] inline

KVCODEC_INLINE Floats load(const float* from) {
  Floats value;
  memcpy(&value, from, sizeof(value));
  return value;
}

KVCODEC_INLINE void store(const Floats& value, float* to) { memcpy(to, &value, sizeof(value)); }

/// The last n < 16 elements; the other lanes are 0.
KVCODEC_INLINE Floats load_tail(const float* from, size_t n) {
  Floats value = {};
  memcpy(&value, from, n * sizeof(float));
  return value;
}

KVCODEC_INLINE void store_tail(const Floats& value, float* to, size_t n) {
  memcpy(to, &value, n * sizeof(float));
}

KVCODEC_INLINE Floats broadcast(float value) { return Floats{} + value; }

/// exp(x) for x <= 0: x = k ln 2 + r, |r| <= ln 2 / 2, exp(x) = 2^k exp(r).
KVCODEC_INLINE Floats exp_of_nonpositive(const Floats& x) {
  constexpr float kLog2OfE = 0x1.715476p+0f;
  // ln 2 in two parts; the first has so few digits that k times it is exact.
  constexpr float kLn2High = 0x1.62ep-1f, kLn2Low = 0x1.0bfbe8p-15f;
  // Adding it rounds to an integer, which then stands in the lowest bits.
  constexpr float kRound = 0x1.8p+23f;
  constexpr float kSmallest = -0x1.5d589ep+6f;  // ln of the smallest normal float
  const Floats shifted = x * kLog2OfE + kRound;
  const Floats k = shifted - kRound;
  const Floats r = (x - k * kLn2High) - k * kLn2Low;
  // exp(r) = 1 + r + r^2 q(r), q the minimax polynomial of degree 4 for the relative error of exp(r) on that
  // interval: 3.1e-9 before rounding (Remez, computed for this file).
  Floats q = broadcast(0x1.6a244cp-10f);
  q = q * r + 0x1.1239d4p-7f;
  q = q * r + 0x1.5558f2p-5f;
  q = q * r + 0x1.555492p-3f;
  q = q * r + 0x1.fffffcp-2f;
  const Floats mantissa = (r * r) * q + r + 1.0f;
  Bits exponent;
  memcpy(&exponent, &shifted, sizeof(exponent));
  const Bits power_bits = (exponent + 127u) << 23;
  Floats power;
  memcpy(&power, &power_bits, sizeof(power));
  return x < kSmallest ? Floats{} : mantissa * power;
}

KVCODEC_INLINE EightFloats lower_half(const Floats& value) {
  return __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7);
}
KVCODEC_INLINE EightFloats upper_half(const Floats& value) {
  return __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
}

/// Folds lanes in halves: the upper half onto the lower one until one lane is left. In registers; through memory this would take
/// longer than a row of a hundred values.
template <class Combine>
KVCODEC_INLINE float folded(const Floats& value, const Combine& combine) {
  const EightFloats eight = combine(lower_half(value), upper_half(value));
  const FourFloats four = combine(__builtin_shufflevector(eight, eight, 0, 1, 2, 3),
                                  __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
  const FourFloats two = combine(four, __builtin_shufflevector(four, four, 2, 3, 2, 3));
  return combine(two, __builtin_shufflevector(two, two, 1, 1, 1, 1))[0];
}

struct Sum {
  template <class T>
  KVCODEC_INLINE T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
/// Where b is not a number, a.
struct Larger {
  template <class T>
  KVCODEC_INLINE T operator()(const T& a, const T& b) const {
    return b > a ? b : a;
  }
};

KVCODEC_INLINE float sum_of(const Floats& value) { return folded(value, Sum()); }
KVCODEC_INLINE float max_of(const Floats& value) { return folded(value, Larger()); }

/// Sixteen lanes of doubles.
struct WideDoubles {
  Doubles low = {}, high = {};
};

KVCODEC_INLINE WideDoubles widened(const Floats& value) {
  // By way of memory: compilers read halves from there, where taking a register apart would cost more.
  EightFloats halves[2];
  memcpy(halves, &value, sizeof(value));
  return {__builtin_convertvector(halves[0], Doubles), __builtin_convertvector(halves[1], Doubles)};
}

KVCODEC_INLINE void add(const WideDoubles& value, WideDoubles& total) {
  total.low += value.low;
  total.high += value.high;
}

KVCODEC_INLINE void add_products(const Floats& x, const Floats& y, WideDoubles& total) {
  const WideDoubles a = widened(x), b = widened(y);
  add({a.low * b.low, a.high * b.high}, total);
}

KVCODEC_INLINE double sum_of(const WideDoubles& value) {
  const Doubles eight = value.low + value.high;
  const FourDoubles four =
      __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  const FourDoubles two = four + __builtin_shufflevector(four, four, 2, 3, 2, 3);
  return two[0] + two[1];
}

double sum(const float* x, size_t n) {
  WideDoubles total;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) add(widened(load(x + i)), total);
  if (i < n) add(widened(load_tail(x + i, n - i)), total);
  return sum_of(total);
}

double dot(const float* x, const float* y, size_t n) {
  WideDoubles total;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) add_products(load(x + i), load(y + i), total);
  if (i < n) add_products(load_tail(x + i, n - i), load_tail(y + i, n - i), total);
  return sum_of(total);
}

void rms_norm(const float* x, const float* weight, double epsilon, float* out, size_t n) {
  const Floats factor = broadcast((float)(1.0 / sqrt(dot(x, x, n) / (double)n + epsilon)));
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(load(x + i) * factor * load(weight + i), out + i);
  if (i < n) store_tail(load_tail(x + i, n - i) * factor * load_tail(weight + i, n - i), out + i, n - i);
}

void layer_norm(const float* x, const float* weight, const float* bias, double epsilon, float* out,
                size_t n) {
  const double mean = sum(x, n) / (double)n;
  // Of the values themselves: the variance is what is left of the mean of squares.
  const Floats centre = broadcast((float)mean);
  WideDoubles squares;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) add_products(load(x + i) - centre, load(x + i) - centre, squares);
  if (i < n) {
    Floats rest = centre;
    memcpy(&rest, x + i, (n - i) * sizeof(float));
    add_products(rest - centre, rest - centre, squares);
  }
  const double off = mean - (double)(float)mean;  // what rounding the mean left
  const double variance = sum_of(squares) / (double)n - off * off;
  const Floats factor = broadcast((float)(1.0 / sqrt(variance + epsilon)));
  for (i = 0; i + kLanes <= n; i += kLanes)
    store((load(x + i) - centre) * factor * load(weight + i) + load(bias + i), out + i);
  if (i < n)
    store_tail((load_tail(x + i, n - i) - centre) * factor * load_tail(weight + i, n - i) +
                   load_tail(bias + i, n - i),
               out + i, n - i);
}

/// x / (1 + exp(-u)).
KVCODEC_INLINE Floats times_logistic(const Floats& x, const Floats& u) {
  // With e = exp(-|u|): x / (1 + e) for u >= 0, x e / (1 + e) below. No overflow, and small results keep
  // their digits.
  const Floats e = exp_of_nonpositive(u < 0.0f ? u : -u);
  return x * (u < 0.0f ? e : broadcast(1.0f)) / (e + 1.0f);
}

KVCODEC_INLINE Floats silu_of(const Floats& x) { return times_logistic(x, x); }

KVCODEC_INLINE Floats gelu_tanh_of(const Floats& x) {
  constexpr float kTwice = 0x1.988454p+0f;  // 2 sqrt(2 / pi)
  return times_logistic(x, (x + x * x * x * 0.044715f) * kTwice);
}

void silu_times(float* gate, const float* up, size_t n) {
  const Floats one = broadcast(1.0f);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(silu_of(load(gate + i)) * (up ? load(up + i) : one), gate + i);
  if (i < n)
    store_tail(silu_of(load_tail(gate + i, n - i)) * (up ? load_tail(up + i, n - i) : one), gate + i, n - i);
}

void gelu_tanh_times(float* gate, const float* up, size_t n) {
  const Floats one = broadcast(1.0f);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    store(gelu_tanh_of(load(gate + i)) * (up ? load(up + i) : one), gate + i);
  if (i < n)
    store_tail(gelu_tanh_of(load_tail(gate + i, n - i)) * (up ? load_tail(up + i, n - i) : one), gate + i,
               n - i);
}

KVCODEC_INLINE Floats clamped_swiglu_of(const Floats& gate, const Floats& up) {
  constexpr float kLimit = 7, kSteepness = 1.702f;
  const Floats low = gate > kLimit ? broadcast(kLimit) : gate;
  const Floats below = up > kLimit ? broadcast(kLimit) : up;
  const Floats clamped = below < -kLimit ? broadcast(-kLimit) : below;
  return times_logistic(low, low * kSteepness) * (clamped + 1.0f);
}

void clamped_swiglu(float* gate, const float* up, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(clamped_swiglu_of(load(gate + i), load(up + i)), gate + i);
  if (i < n)
    store_tail(clamped_swiglu_of(load_tail(gate + i, n - i), load_tail(up + i, n - i)), gate + i, n - i);
}

KVCODEC_INLINE Floats tanh_of(const Floats& x) {
  const Floats size = x < 0.0f ? -x : x;
  const Floats e = exp_of_nonpositive(size * -2.0f);
  const Floats far = (1.0f - e) / (e + 1.0f);
  // There the difference from 1 loses digits; the series up to x^9 is within 5e-8 of tanh.
  const Floats square = x * x;
  Floats series = broadcast(62.0f / 2835.0f);
  series = series * square - 17.0f / 315.0f;
  series = series * square + 2.0f / 15.0f;
  series = series * square - 1.0f / 3.0f;
  const Floats near = x + x * square * series;
  return size < 0.3f ? near : (x < 0.0f ? -far : far);
}

void soft_cap(float* x, float cap, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(tanh_of(load(x + i) / cap) * cap, x + i);
  if (i < n) store_tail(tanh_of(load_tail(x + i, n - i) / cap) * cap, x + i, n - i);
}

void exp_nonpositive(float* x, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(exp_of_nonpositive(load(x + i)), x + i);
  if (i < n) store_tail(exp_of_nonpositive(load_tail(x + i, n - i)), x + i, n - i);
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

/// Cosines and sines of eight angles: angle = k pi/2 + r, |r| <= pi/4, where k says which of +-sin r and +-cos r
/// they are. In double, with sums of Taylor's series whose next term is below 3e-14.
KVCODEC_INLINE void cosines_sines_of(const Doubles& angle, EightFloats& cosines, EightFloats& sines) {
  // pi / 2 in three parts; the first two have so few digits (28) that k times them is exact for k < 2^25.
  constexpr double kHigh = 0x1.921fb54p+0, kMiddle = 0x1.10b4610p-30, kLow = 0x1.a62633145c06ep-58;
  // Adding it rounds to an integer, which then stands in the lowest bits.
  constexpr double kRound = 0x1.8p+52;
  const Doubles shifted = angle * 0x1.45f306dc9c883p-1 + kRound;
  const Doubles k = shifted - kRound;
  const Doubles r = ((angle - k * kHigh) - k * kMiddle) - k * kLow;
  const Doubles square = r * r;
  Doubles s = Doubles{} + 1.0 / 6227020800;
  s = s * square - 1.0 / 39916800;
  s = s * square + 1.0 / 362880;
  s = s * square - 1.0 / 5040;
  s = s * square + 1.0 / 120;
  s = s * square - 1.0 / 6;
  s = r + r * square * s;
  Doubles c = Doubles{} - 1.0 / 87178291200;
  c = c * square + 1.0 / 479001600;
  c = c * square - 1.0 / 3628800;
  c = c * square + 1.0 / 40320;
  c = c * square - 1.0 / 720;
  c = c * square + 1.0 / 24;
  c = 1.0 - 0.5 * square + square * square * c;
  DoubleBits quarter, sine, cosine;
  memcpy(&quarter, &shifted, sizeof(quarter));
  memcpy(&sine, &s, sizeof(sine));
  memcpy(&cosine, &c, sizeof(cosine));
  const DoubleBits swapped = DoubleBits{} - (quarter & 1);  // all bits where sine and cosine change places
  const DoubleBits exchanged = (sine ^ cosine) & swapped;
  const DoubleBits cosine_bits = (cosine ^ exchanged) ^ (((quarter + 1) & 2) << 62);
  const DoubleBits sine_bits = (sine ^ exchanged) ^ ((quarter & 2) << 62);
  memcpy(&c, &cosine_bits, sizeof(c));
  memcpy(&s, &sine_bits, sizeof(s));
  cosines = __builtin_convertvector(c, EightFloats);
  sines = __builtin_convertvector(s, EightFloats);
}

void cosines_sines(float position, const float* frequencies, float* cosines, float* sines, size_t n) {
  for (size_t j = 0; j < n; j += 8) {
    const size_t bytes = (n - j < 8 ? n - j : 8) * sizeof(float);
    EightFloats angles = {}, c, s;
    memcpy(&angles, frequencies + j, bytes);
    angles *= position;
    cosines_sines_of(__builtin_convertvector(angles, Doubles), c, s);
    memcpy(cosines + j, &c, bytes);
    memcpy(sines + j, &s, bytes);
  }
}

/// The largest of n scores, a multiple of kLanes, and `least`.
KVCODEC_INLINE float largest_of(const float* scores, size_t n, float least) {
  constexpr size_t kChains = 4;  // as many comparisons wait for each other's results
  constexpr Larger larger;
  Floats largest[kChains];
  for (Floats& chain : largest) chain = broadcast(least);
  size_t i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes)
    for (size_t chain = 0; chain < kChains; ++chain)
      largest[chain] = larger(largest[chain], load(scores + i + chain * kLanes));
  for (; i < n; i += kLanes) largest[0] = larger(largest[0], load(scores + i));
  return max_of(larger(larger(largest[0], largest[1]), larger(largest[2], largest[3])));
}

/// As Table's; take(weights, i) gets those of scores i to i + 15.
template <class Take>
KVCODEC_INLINE float softmax(const float* scores, float* max, float* sum, size_t n, const Take& take) {
  const float new_max = largest_of(scores, n, *max);
  Floats total = {};
  for (size_t i = 0; i < n; i += kLanes) {
    const Floats weight = exp_of_nonpositive(load(scores + i) - new_max);
    take(weight, i);
    total += weight;
  }
  const float factor = exp_of_nonpositive(broadcast(*max - new_max))[0];
  *sum = *sum * factor + sum_of(total);
  *max = new_max;
  return factor;
}

float softmax_block(float* scores, float* max, float* sum, size_t n) {
  return softmax(scores, max, sum, n, [&](const Floats& weight, size_t i) { store(weight, scores + i); });
}

float softmax_block_bf16(const float* scores, uint16_t* weights, float* max, float* sum, size_t n) {
  return softmax(scores, max, sum, n, [&](const Floats& weight, size_t i) {
    Bits bits;
    memcpy(&bits, &weight, sizeof(bits));
    // To the nearest, ties to even. A NaN may become another number here, but not in the sum.
    const Halves rounded = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
    memcpy(weights + i, &rounded, sizeof(rounded));
  });
}

#undef KVCODEC_INLINE

constexpr Table kTable = {
    rms_norm,           layer_norm, silu_times, gelu_tanh_times, clamped_swiglu, soft_cap,
    exp_nonpositive,    add_to,     scale,      turn_pairs,      cosines_sines,  softmax_block,
    softmax_block_bf16, sum,        dot};

}  // namespace
}  // namespace kvcodec::row_kernels
