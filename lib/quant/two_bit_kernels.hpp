// The inner loops of two_bit.hpp once per instruction set (lib/core/cpu.hpp). Inside lib/quant only. No
// alignment needed; nothing is read or written outside the arrays.
//
// Two of them are in this file, since compilers make them wide by themselves for each instruction set: each value goes through the same
// operations everywhere, so all levels give the same bytes. They are in an unnamed namespace, so that no file can get another's copy.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/core/variants.hpp"

namespace kvcodec::two_bit_kernels {

struct Row {
  const uint8_t* levels;
  const uint16_t *scales, *zeros;
  size_t dims;
};

/// Signs of one row, as bits; a maximum and a centre of each channel.
struct Signs {
  const uint8_t* bits;
  const float *alpha, *center;
};

struct Table {
  /// Smallest and largest of n >= 1 values.
  void (*range)(const float* x, size_t n, float* low, float* high);
  /// Moves a grid of n <= 32 values, of a scale that is positive, to where its error, weighed value by value, is least.
  void (*refine)(const float* x, const float* weights, size_t n, float* zero, float* scale);
  /// Packs the levels of n <= 32 values on one grid; divisor is its scale, or 1 where that is 0.
  void (*levels)(const float* x, size_t n, float zero, float divisor, uint8_t* out);
  /// out[j] = zero + level * scale.
  void (*decode)(const Row& row, float* out);
  /// out[j] = center[j] +- alpha[j] * (zero + level * scale).
  void (*decode_signed)(const Row& row, const Signs& signs, float* out);
};

KVCODEC_VARIANTS(const Table& table();)

namespace {

constexpr size_t kGroup = 32;

void range(const float* x, size_t n, float* low, float* high) {
  constexpr size_t kLanes = 16;  // independent minima, which the compiler keeps in vectors
  float least[kLanes], limit[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) least[lane] = limit[lane] = x[0];
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      least[lane] = x[i + lane] < least[lane] ? x[i + lane] : least[lane];
      limit[lane] = x[i + lane] > limit[lane] ? x[i + lane] : limit[lane];
    }
  for (; i < n; ++i) {
    least[0] = x[i] < least[0] ? x[i] : least[0];
    limit[0] = x[i] > limit[0] ? x[i] : limit[0];
  }
  for (size_t lane = 1; lane < kLanes; ++lane) {
    least[0] = least[lane] < least[0] ? least[lane] : least[0];
    limit[0] = limit[lane] > limit[0] ? limit[lane] : limit[0];
  }
  *low = least[0];
  *high = limit[0];
}

inline int32_t level_of(float x, float zero, float divisor) {
  float rounded = (x - zero) / divisor + 0.5f;
  rounded = rounded > 0.0f ? rounded : 0.0f;
  return (int32_t)(rounded < 3.0f ? rounded : 3.0f);
}

void refine(const float* x, const float* weights, size_t n, float* zero, float* scale) {
  float values[kGroup] = {}, weighed[kGroup] = {}, level[kGroup];
  memcpy(values, x, n * sizeof(float));
  memcpy(weighed, weights, n * sizeof(float));
  for (int round = 0; round < 4; ++round) {
    for (size_t i = 0; i < kGroup; ++i) level[i] = (float)level_of(values[i], *zero, *scale);
    // The line through values by their levels. Lanes are summed in one order, so that all instruction sets give the same.
    constexpr size_t kLanes = 16;
    float sums[5][kLanes] = {};
    for (size_t i = 0; i < kGroup; i += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float weight = weighed[i + lane], l = level[i + lane], by_level = weight * l;
        sums[0][lane] += weight;
        sums[1][lane] += by_level;
        sums[2][lane] += by_level * l;
        sums[3][lane] += weight * values[i + lane];
        sums[4][lane] += by_level * values[i + lane];
      }
    for (float(&sum)[kLanes] : sums)
      for (size_t lane = 1; lane < kLanes; ++lane) sum[0] += sum[lane];
    const float mean_level = sums[1][0] / sums[0][0], mean = sums[3][0] / sums[0][0];
    const float variance = sums[2][0] - sums[1][0] * mean_level,
                slope = (sums[4][0] - sums[1][0] * mean) / variance;
    if (!(variance > 0) || !(slope > 0)) return;
    *scale = slope;
    *zero = mean - slope * mean_level;
  }
}

void levels(const float* x, size_t n, float zero, float divisor, uint8_t* out) {
  int32_t level[kGroup] = {};
  for (size_t i = 0; i < n; ++i) level[i] = level_of(x[i], zero, divisor);
  for (size_t i = 0; i < n; i += 4)
    out[i / 4] = (uint8_t)(level[i] << 6 | level[i + 1] << 4 | level[i + 2] << 2 | level[i + 3]);
}

}  // namespace
}  // namespace kvcodec::two_bit_kernels
