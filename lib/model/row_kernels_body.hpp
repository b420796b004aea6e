// The functions of row_ops.hpp, compiled three times: by row_ops.cpp for every machine and by row_kernels_avx2.cpp and
// row_kernels_avx512.cpp with wider instructions. Their vectors are as wide as a register; GCC keeps wider ones in memory. Sums
// have 16 lanes at every level, so they are the same everywhere. Products and sums are never fused. Everything is in an unnamed
// namespace, so that no file can get another's copy (see lib/core/cpu.hpp).
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/core/variants.hpp"

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions of one file only

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
  float (*softmax_block_bf16)(const float* scores, uint16_t* weights, float* max, float* sum, size_t n);
  double (*sum)(const float* x, size_t n);
  double (*dot)(const float* x, const float* y, size_t n);
};

KVCODEC_VARIANTS(const Table& table();)

namespace {

constexpr size_t kWidth = KVCODEC_REGISTER_FLOATS;
constexpr size_t kHalf = kWidth / 2;
typedef float Floats __attribute__((vector_size(kWidth * sizeof(float))));
typedef uint32_t Bits __attribute__((vector_size(kWidth * sizeof(uint32_t))));
typedef uint16_t Halves __attribute__((vector_size(kWidth * sizeof(uint16_t))));
typedef float HalfFloats __attribute__((vector_size(kHalf * sizeof(float))));
typedef double Doubles __attribute__((vector_size(kHalf * sizeof(double))));
typedef uint64_t DoubleBits __attribute__((vector_size(kHalf * sizeof(uint64_t))));

// Vectors for folding lanes, whatever the width.
typedef float FourFloats __attribute__((vector_size(4 * sizeof(float))));
typedef float EightFloats __attribute__((vector_size(8 * sizeof(float))));
typedef float SixteenFloats __attribute__((vector_size(16 * sizeof(float))));
typedef double TwoDoubles __attribute__((vector_size(2 * sizeof(double))));
typedef double FourDoubles __attribute__((vector_size(4 * sizeof(double))));
typedef double EightDoubles __attribute__((vector_size(8 * sizeof(double))));

#define KVCODEC_INLINE [[gnu::always_inline]] inline

KVCODEC_INLINE Floats broadcast(float value) { return Floats{} + value; }

/// A whole vector of a row, by its begin; the row holds all of its elements.
struct Whole {
  size_t begin;
  KVCODEC_INLINE Floats load(const float* row) const {
    Floats value;
    memcpy(&value, row + begin, sizeof(value));
    return value;
  }
  KVCODEC_INLINE Floats load(const float* row, const Floats& /*others*/) const { return load(row); }
  KVCODEC_INLINE void store(const Floats& value, float* row) const {
    memcpy(row + begin, &value, sizeof(value));
  }
};

/// The same for the end of a row, which holds the first n < kWidth elements.
struct Tail {
  size_t begin, n;
  /// The elements beyond the row are those of `others`.
  KVCODEC_INLINE Floats load(const float* row, const Floats& others = Floats{}) const {
    Floats value = others;
    memcpy(&value, row + begin, n * sizeof(float));
    return value;
  }
  KVCODEC_INLINE void store(const Floats& value, float* row) const {
    memcpy(row + begin, &value, n * sizeof(float));
  }
};

/// Calls body(at) for each vector of a row of n elements, with a Whole or, at last, a Tail.
template <class Body>
KVCODEC_INLINE void each_vector(size_t n, const Body& body) {
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) body(Whole{i});
  if (i < n) body(Tail{i, n - i});
}

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

// Folds lanes in halves: the upper half onto the lower one until one lane is left. In registers; through memory this would take
// longer than a row of a hundred values.

template <class Combine>
KVCODEC_INLINE float folded(const FourFloats& four, const Combine& combine) {
  const FourFloats two = combine(four, __builtin_shufflevector(four, four, 2, 3, 2, 3));
  return combine(two, __builtin_shufflevector(two, two, 1, 1, 1, 1))[0];
}
template <class Combine>
KVCODEC_INLINE float folded(const EightFloats& eight, const Combine& combine) {
  return folded(combine(__builtin_shufflevector(eight, eight, 0, 1, 2, 3),
                        __builtin_shufflevector(eight, eight, 4, 5, 6, 7)),
                combine);
}
template <class Combine>
KVCODEC_INLINE float folded(const SixteenFloats& all, const Combine& combine) {
  return folded(combine(__builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7),
                        __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15)),
                combine);
}

template <class Combine>
KVCODEC_INLINE double folded(const TwoDoubles& two, const Combine& combine) {
  return combine(two[0], two[1]);
}
template <class Combine>
KVCODEC_INLINE double folded(const FourDoubles& four, const Combine& combine) {
  return folded(combine(__builtin_shufflevector(four, four, 0, 1), __builtin_shufflevector(four, four, 2, 3)),
                combine);
}
template <class Combine>
KVCODEC_INLINE double folded(const EightDoubles& eight, const Combine& combine) {
  return folded(combine(__builtin_shufflevector(eight, eight, 0, 1, 2, 3),
                        __builtin_shufflevector(eight, eight, 4, 5, 6, 7)),
                combine);
}

struct Sum {
  template <class T>
  KVCODEC_INLINE T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
/// The larger number; a if b is a NaN.
struct Larger {
  template <class T>
  KVCODEC_INLINE T operator()(const T& a, const T& b) const {
    return b > a ? b : a;
  }
};

/// Lanes into which a row is folded, the same at every level: 16, element i in lane i % 16.
constexpr size_t kLanes = 16;
constexpr size_t kParts = kLanes / kWidth;

/// The lanes in one lane; parts is overwritten.
template <class Vector, size_t kCount, class Combine>
KVCODEC_INLINE auto folded(Vector (&parts)[kCount], const Combine& combine) {
  for (size_t half = kCount / 2; half > 0; half /= 2)
    for (size_t part = 0; part < half; ++part) parts[part] = combine(parts[part], parts[part + half]);
  return folded(parts[0], combine);
}

/// A vector's elements as doubles.
struct Wide {
  Doubles low, high;
};

KVCODEC_INLINE Wide widened(const Floats& value) {
  // Through memory: compilers read halves from there, and splitting a register would cost more.
  HalfFloats halves[2];
  memcpy(halves, &value, sizeof(value));
  return {__builtin_convertvector(halves[0], Doubles), __builtin_convertvector(halves[1], Doubles)};
}

KVCODEC_INLINE Wide product(const Floats& x, const Floats& y) {
  const Wide a = widened(x), b = widened(y);
  return {a.low * b.low, a.high * b.high};
}

/// The sum of term(at), a Wide, of each vector of a row of n elements; a term is 0 beyond the row.
template <class Term>
KVCODEC_INLINE double sum_of(size_t n, const Term& term) {
  Doubles lanes[2 * kParts] = {};
  const auto add = [&](size_t part, const Wide& value) {
    lanes[2 * part] += value.low;
    lanes[2 * part + 1] += value.high;
  };
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t part = 0; part < kParts; ++part) add(part, term(Whole{i + part * kWidth}));
  for (size_t part = 0; part < kParts && i < n; ++part, i += kWidth)
    add(part, i + kWidth <= n ? term(Whole{i}) : term(Tail{i, n - i}));
  return folded(lanes, Sum());
}

double sum(const float* x, size_t n) {
  return sum_of(n, [&](const auto& at) { return widened(at.load(x)); });
}

double dot(const float* x, const float* y, size_t n) {
  return sum_of(n, [&](const auto& at) { return product(at.load(x), at.load(y)); });
}

void rms_norm(const float* x, const float* weight, double epsilon, float* out, size_t n) {
  const Floats factor = broadcast((float)(1.0 / sqrt(dot(x, x, n) / (double)n + epsilon)));
  each_vector(n, [&](const auto& at) { at.store(at.load(x) * factor * at.load(weight), out); });
}

void layer_norm(const float* x, const float* weight, const float* bias, double epsilon, float* out,
                size_t n) {
  const double mean = sum(x, n) / (double)n;
  // Squares are of distances from the rounded mean; the variance is their mean less the square of the rounding error.
  const Floats centre = broadcast((float)mean);
  const double squares = sum_of(n, [&](const auto& at) {
    const Floats distance = at.load(x, centre) - centre;
    return product(distance, distance);
  });
  const double off = mean - (double)(float)mean;  // the error of rounding the mean
  const double variance = squares / (double)n - off * off;
  const Floats factor = broadcast((float)(1.0 / sqrt(variance + epsilon)));
  each_vector(n, [&](const auto& at) {
    at.store((at.load(x) - centre) * factor * at.load(weight) + at.load(bias), out);
  });
}

/// x / (1 + exp(-u)).
KVCODEC_INLINE Floats times_logistic(const Floats& x, const Floats& u) {
  // With e = exp(-|u|): x / (1 + e) for u >= 0, x e / (1 + e) below. No overflow, and small results keep
  // their digits.
  const Floats e = exp_of_nonpositive(u < 0.0f ? u : -u);
  return x * (u < 0.0f ? e : broadcast(1.0f)) / (e + 1.0f);
}

KVCODEC_INLINE Floats gelu_tanh_of(const Floats& x) {
  constexpr float kTwice = 0x1.988454p+0f;  // 2 sqrt(2 / pi)
  return times_logistic(x, (x + x * x * x * 0.044715f) * kTwice);
}

template <class Of>
KVCODEC_INLINE void activate_times(float* gate, const float* up, size_t n, const Of& of) {
  const Floats one = broadcast(1.0f);
  each_vector(n, [&](const auto& at) { at.store(of(at.load(gate)) * (up ? at.load(up) : one), gate); });
}
void silu_times(float* gate, const float* up, size_t n) {
  activate_times(gate, up, n, [](const Floats& x) { return times_logistic(x, x); });
}
void gelu_tanh_times(float* gate, const float* up, size_t n) {
  activate_times(gate, up, n, [](const Floats& x) { return gelu_tanh_of(x); });
}

KVCODEC_INLINE Floats clamped_swiglu_of(const Floats& gate, const Floats& up) {
  constexpr float kLimit = 7, kSteepness = 1.702f;
  const Floats low = gate > kLimit ? broadcast(kLimit) : gate;
  const Floats below = up > kLimit ? broadcast(kLimit) : up;
  const Floats clamped = below < -kLimit ? broadcast(-kLimit) : below;
  return times_logistic(low, low * kSteepness) * (clamped + 1.0f);
}

void clamped_swiglu(float* gate, const float* up, size_t n) {
  each_vector(n, [&](const auto& at) { at.store(clamped_swiglu_of(at.load(gate), at.load(up)), gate); });
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
  each_vector(n, [&](const auto& at) { at.store(tanh_of(at.load(x) / cap) * cap, x); });
}

void exp_nonpositive(float* x, size_t n) {
  each_vector(n, [&](const auto& at) { at.store(exp_of_nonpositive(at.load(x)), x); });
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

/// Cosines and sines of angles: angle = k pi/2 + r, |r| <= pi/4, where k says which of +-sin r and +-cos r
/// they are. In double, with sums of Taylor's series whose next term is below 3e-14.
KVCODEC_INLINE void cosines_sines_of(const Doubles& angle, HalfFloats& cosines, HalfFloats& sines) {
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
  cosines = __builtin_convertvector(c, HalfFloats);
  sines = __builtin_convertvector(s, HalfFloats);
}

void cosines_sines(float position, const float* frequencies, float* cosines, float* sines, size_t n) {
  for (size_t j = 0; j < n; j += kHalf) {
    const size_t bytes = (n - j < kHalf ? n - j : kHalf) * sizeof(float);
    HalfFloats angles = {}, c, s;
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
  for (; i + kChains * kWidth <= n; i += kChains * kWidth)
    for (size_t chain = 0; chain < kChains; ++chain)
      largest[chain] = larger(largest[chain], Whole{i + chain * kWidth}.load(scores));
  for (; i < n; i += kWidth) largest[0] = larger(largest[0], Whole{i}.load(scores));
  return folded(largest, larger);
}

/// As Table's; take(at, weights) gets each vector.
template <class Take>
KVCODEC_INLINE float softmax(const float* scores, float* max, float* sum, size_t n, const Take& take) {
  const float new_max = largest_of(scores, n, *max);
  Floats total[kParts] = {};
  for (size_t i = 0; i < n; i += kLanes)
    for (size_t part = 0; part < kParts; ++part) {
      const Whole at{i + part * kWidth};
      const Floats weight = exp_of_nonpositive(at.load(scores) - new_max);
      take(at, weight);
      total[part] += weight;
    }
  const float factor = exp_of_nonpositive(broadcast(*max - new_max))[0];
  *sum = *sum * factor + folded(total, Sum());
  *max = new_max;
  return factor;
}

float softmax_block(float* scores, float* max, float* sum, size_t n) {
  return softmax(scores, max, sum, n,
                 [&](const Whole& at, const Floats& weight) { at.store(weight, scores); });
}

float softmax_block_bf16(const float* scores, uint16_t* weights, float* max, float* sum, size_t n) {
  return softmax(scores, max, sum, n, [&](const Whole& at, const Floats& weight) {
    Bits bits;
    memcpy(&bits, &weight, sizeof(bits));
    // To the nearest, ties to even. A NaN may become another number here, but not in the sum.
    const Halves rounded = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
    memcpy(weights + at.begin, &rounded, sizeof(rounded));
  });
}

#undef KVCODEC_INLINE

constexpr Table kTable = {
    rms_norm,           layer_norm, silu_times, gelu_tanh_times, clamped_swiglu, soft_cap,
    exp_nonpositive,    add_to,     scale,      turn_pairs,      cosines_sines,  softmax_block,
    softmax_block_bf16, sum,        dot};

}  // namespace

const Table& KVCODEC_LEVEL::table() { return kTable; }

}  // namespace kvcodec::row_kernels
