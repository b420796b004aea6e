// The inner loops of sign_index.hpp once per instruction set (lib/core/cpu.hpp). Inside lib/selfindex only.
//
// Codes lie in blocks of 64 tokens, the last one filled up with zero bytes: [token / 32][byte][token % 32]. A
// register holds one byte of 32 tokens, looked up in one 16-entry table (as Andre, Kermarrec and Le Scouarnec,
// "Quicker ADC", do). Tables are [group][16].
//
// Sums of bytes are exact integers. Sums of floats run over the groups in order, nothing fused. All levels
// give the same bits.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::scan_kernels {

enum : size_t {
  kBlock = 64,  // tokens
  kLaneTokens = 32,
  kScanRoom = kBlock + 16,  // places scan needs to go on: what it writes, and a register beyond
};

struct Codes {
  const uint8_t* bytes;
  size_t tokens;
  size_t row_bytes;
  size_t groups;  // 2 * row_bytes, or fewer where the last ones are padding
};

struct Table {
  /// Finds the tokens of blocks [first, end) whose byte sum is at least `limit`: writes their sums and ids.
  /// Stops where fewer than kScanRoom places are left; returns the first block not scanned, and in *written
  /// how many it wrote.
  size_t (*scan)(const Codes& codes, const uint8_t* table, size_t first, size_t end, int32_t limit,
                 int32_t* sums, uint32_t* ids, size_t room, size_t* written);
  /// out[64 * (b - first) + t] = the float score of token t of block b, for blocks [first, end), padding included.
  void (*exact)(const Codes& codes, const float* table, size_t first, size_t end, float* out);
  /// out[i] = the float score of token ids[i].
  void (*exact_of)(const Codes& codes, const float* table, const uint32_t* ids, size_t n, float* out);
};

namespace scalar {
const Table& table();
}
KVCODEC_WIDE_VARIANT(avx2, scalar, const Table& table();)

}  // namespace kvcodec::scan_kernels
