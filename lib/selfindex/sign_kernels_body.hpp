// The bodies of sign_kernels.hpp that every level shares, compiled once per instruction set. Each sum takes
// its values in the order of the tokens, so all levels give the same bits. In an unnamed namespace, so that
// no file can get another's copy (see lib/core/cpu.hpp).
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/selfindex/sign_kernels.hpp"

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions of one file only

namespace kvcodec::sign_kernels {
namespace {

typedef float FourFloats __attribute__((vector_size(16)));
typedef double FourDoubles __attribute__((vector_size(32)));

/// The last n < 8 values: bits behind them are 0.
[[maybe_unused]] uint8_t encode_tail(const float* values, size_t n) {
  unsigned bits = 0;
  for (size_t i = 0; i < n; ++i) bits |= (unsigned)(values[i] >= 0) << (7 - i);
  return (uint8_t)bits;
}

inline void add_group(const float* values, Sums* sum, uint32_t* count) {
  FourFloats group;
  FourDoubles total;
  memcpy(&group, values, sizeof(group));
  memcpy(&total, sum->values, sizeof(total));
  total += __builtin_convertvector(group, FourDoubles);
  memcpy(sum->values, &total, sizeof(total));
  ++*count;
}

void add(const float* values, const uint8_t* codes, size_t n, Sums* sums, uint32_t* counts) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8, values += 8, sums += 32, counts += 32) {
    const size_t high = codes[i / 8] >> 4, low = codes[i / 8] & 15;
    add_group(values, sums + high, counts + high);
    add_group(values + 4, sums + 16 + low, counts + 16 + low);
  }
  if (i < n) add_group(values, sums + (codes[i / 8] >> 4), counts + (codes[i / 8] >> 4));
}

typedef float Floats __attribute__((vector_size(64)));
typedef float EightFloats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(16)));

#define KVCODEC_INLINE [[gnu::always_inline]] inline

KVCODEC_INLINE Floats load(const float* from) {
  Floats value;
  memcpy(&value, from, sizeof(value));
  return value;
}

/// Smallest and largest of 16 lanes.
KVCODEC_INLINE void fold(const Floats& value, float* low, float* high) {
  EightFloats halves[2];
  memcpy(halves, &value, sizeof(value));
  const EightFloats least = halves[0] < halves[1] ? halves[0] : halves[1];
  const EightFloats most = halves[0] > halves[1] ? halves[0] : halves[1];
  FourFloats quarters[2];
  memcpy(quarters, &least, sizeof(least));
  const FourFloats lows = quarters[0] < quarters[1] ? quarters[0] : quarters[1];
  memcpy(quarters, &most, sizeof(most));
  const FourFloats highs = quarters[0] > quarters[1] ? quarters[0] : quarters[1];
  const float low_a = lows[0] < lows[1] ? lows[0] : lows[1], low_b = lows[2] < lows[3] ? lows[2] : lows[3];
  const float high_a = highs[0] > highs[1] ? highs[0] : highs[1];
  const float high_b = highs[2] > highs[3] ? highs[2] : highs[3];
  *low = low_a < low_b ? low_a : low_b;
  *high = high_a > high_b ? high_a : high_b;
}

void products(const float* centroids, const float* query, size_t groups, float* entries, float* low,
              float* high) {
  for (size_t group = 0; group < groups; ++group, centroids += 64, query += 4, entries += 16) {
    Floats sum = load(centroids) * query[0];
    sum = sum + load(centroids + 16) * query[1];
    sum = sum + load(centroids + 32) * query[2];
    sum = sum + load(centroids + 48) * query[3];
    memcpy(entries, &sum, sizeof(sum));
    fold(sum, low + group, high + group);
  }
}

void to_bytes(const float* entries, const float* low, size_t groups, float inverse, uint8_t* bytes) {
  for (size_t group = 0; group < groups; ++group) {
    const Floats steps = (load(entries + 16 * group) - low[group]) * inverse + 0.5f;
    const Bytes rounded = __builtin_convertvector(__builtin_convertvector(steps, Ints), Bytes);
    memcpy(bytes + 16 * group, &rounded, sizeof(rounded));
  }
}

#undef KVCODEC_INLINE

}  // namespace
}  // namespace kvcodec::sign_kernels
