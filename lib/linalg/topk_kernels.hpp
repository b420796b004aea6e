// The inner loops of topk.hpp once per instruction set (lib/core/cpu.hpp). Inside lib/linalg only. No
// alignment needed.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::topk_kernels {

/// collect and keep may write so many elements behind what they return.
enum : size_t { kSlack = 1 };

struct Table {
  /// Smallest and largest of n >= 1 values.
  void (*range)(const int32_t* values, size_t n, int32_t* low, int32_t* high);
  /// How many of n values are at least `limit`.
  size_t (*count)(const int32_t* values, size_t n, int32_t limit);
  /// Moves the pairs whose key is at least `limit` to the front, in order; returns how many they are.
  size_t (*keep)(int32_t* keys, uint32_t* ids, size_t n, int32_t limit);
  /// Writes ordered_key(scores[i]) and first_id + i where the key is at least `limit`; returns how many.
  size_t (*collect)(const float* scores, size_t n, uint32_t first_id, int32_t limit, int32_t* keys,
                    uint32_t* ids);
  /// ranks[i] = how many of n keys stand before key i: larger ones, and equal ones of a smaller index.
  void (*ranks)(const int32_t* keys, size_t n, uint32_t* ranks);
};

namespace scalar {
const Table& table();
}
KVCODEC_WIDE_VARIANT(avx2, scalar, const Table& table();)

}  // namespace kvcodec::topk_kernels
