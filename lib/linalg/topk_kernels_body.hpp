// The loops of topk_kernels.hpp that compilers turn into wide instructions by themselves, compiled once per
// instruction set; they work on integers, so the results are the same. In an unnamed namespace, so that no
// file can get another's copy (see lib/core/cpu.hpp).
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/linalg/topk_kernels.hpp"

namespace kvcodec::topk_kernels {
namespace {

void range(const int32_t* values, size_t n, int32_t* low, int32_t* high) {
  int32_t least = values[0], most = values[0];
  for (size_t i = 0; i < n; ++i) {
    least = values[i] < least ? values[i] : least;
    most = values[i] > most ? values[i] : most;
  }
  *low = least;
  *high = most;
}

size_t count(const int32_t* values, size_t n, int32_t limit) {
  size_t total = 0;
  while (n > 0) {  // in pieces whose count fits the 32-bit lanes of the vectors
    const size_t piece = n < 0x10000 ? n : 0x10000;
    uint32_t found = 0;
    for (size_t i = 0; i < piece; ++i) found += values[i] >= limit;
    total += found;
    values += piece;
    n -= piece;
  }
  return total;
}

void ranks(const int32_t* keys, size_t n, uint32_t* out) {
  memset(out, 0, n * sizeof(*out));
  for (size_t j = 0; j < n; ++j) {
    const int32_t key = keys[j];
    for (size_t i = 0; i <= j; ++i) out[i] += key > keys[i];
    for (size_t i = j + 1; i < n; ++i) out[i] += key >= keys[i];
  }
}

size_t keep(int32_t* keys, uint32_t* ids, size_t n, int32_t limit) {
  size_t kept = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t key = keys[i];
    keys[kept] = key;
    ids[kept] = ids[i];
    kept += key >= limit;
  }
  return kept;
}

size_t collect(const float* scores, size_t n, uint32_t first_id, int32_t limit, int32_t* keys,
               uint32_t* ids) {
  size_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    const float score = scores[i] + 0.0f;  // -0 becomes 0
    int32_t bits;
    memcpy(&bits, &score, sizeof(bits));
    const int32_t key = bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
    keys[found] = key;
    ids[found] = first_id + (uint32_t)i;
    found += key >= limit;
  }
  return found;
}

constexpr Table kTable = {range, count, keep, collect, ranks};

}  // namespace
}  // namespace kvcodec::topk_kernels
