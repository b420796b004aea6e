// The inner loop of row_sums.hpp, once per instruction set (lib/core/cpu.hpp). Inside lib/linalg only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::row_sums_kernels {

enum : size_t {
  kPanel = 128,  // columns: the sums of one vector that stay in registers, eight of AVX-512
  kBlock = 64,   // rows: with a panel's columns 32 KiB, which stay in the first-level cache
};

struct Table {
  /// Continues `count` sums of kPanel columns each, one behind the other: adds the rows of a block, (kBlock, kPanel)
  /// floats, by coefficients. Sum i has counts[i] pairs from pair i * kBlock on, each of a row of the block and its
  /// coefficient; row and product are fused into the sum one pair after the other.
  void (*add_block)(const float* block, const uint8_t* rows, const float* coefficients, const uint8_t* counts,
                    size_t count, float* sums);
};

KVCODEC_VARIANTS(const Table& table();)

}  // namespace kvcodec::row_sums_kernels
