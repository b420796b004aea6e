// The inner loop of sign_index.hpp once per instruction set (lib/core/cpu.hpp). Inside lib/selfindex only.
//
// Codes lie in blocks of 32 tokens, the last one filled up with zero bytes: [block][byte][token]. So neighbouring
// tokens are looked up side by side in one 16-entry table (as Andre, Kermarrec and Le Scouarnec, "Quicker ADC", do).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::sign_kernels {

enum : size_t { kBlock = 32 };  // tokens

struct Codes {
  const uint8_t* bytes;
  size_t blocks, row_bytes;
  size_t groups;  // 2 * row_bytes, or one fewer where the last half byte is padding
};

// out[32 * b + t] = the score of token t of block b, padding included, by a table [group][16]. Entries are added in the
// order of the groups, nothing fused: all levels give the same bits.
namespace scalar {
void scores(const Codes& codes, const float* table, float* out);
}
KVCODEC_WIDE_VARIANT(avx2, scalar, void scores(const Codes& codes, const float* table, float* out);)

}  // namespace kvcodec::sign_kernels
