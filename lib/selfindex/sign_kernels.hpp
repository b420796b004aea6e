// The inner loops of sign_codes.hpp and sign_table.hpp once per instruction set (lib/core/cpu.hpp). Inside
// lib/selfindex only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::sign_kernels {

/// What a group and code needs to become a mean.
struct Sums {
  double values[4];
};

struct Table {
  /// Sign bits of n values, most significant first, into (n + 7) / 8 bytes.
  void (*encode)(const float* values, size_t n, uint8_t* codes);
  /// Adds the 4 values of each of n / 4 groups to sums[16 * group + code] and 1 to counts[16 * group + code].
  void (*add)(const float* values, const uint8_t* codes, size_t n, Sums* sums, uint32_t* counts);
  /// The float entries of a query's table, (groups, 16), from centroids (4 * groups, 16), and each group's
  /// lowest and highest.
  void (*products)(const float* centroids, const float* query, size_t groups, float* entries, float* low,
                   float* high);
  /// bytes[i] = (entries[i] - low[i / 16]) * inverse + 0.5 rounded down, which is within 0..255.
  void (*to_bytes)(const float* entries, const float* low, size_t groups, float inverse, uint8_t* bytes);
};

KVCODEC_VARIANTS(const Table& table();)

/// That of the level in force.
const Table& best();

}  // namespace kvcodec::sign_kernels
