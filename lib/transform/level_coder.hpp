// Blocks of levels as bytes, and back.
//
// A block is the levels of n tokens, (components, n). Its bytes are
//   a segment   of rANS (lib/entropy/rans.hpp): symbols of component 0, of all tokens in turn, then of component 1 …;
//               a run of symbols has the model of its component's class
//   low bits    component by component, those of all tokens in turn, shift(class) bits each, most significant first,
//               then zero bits to the end of the byte
// Escapes of the segment hold q >> shift, zigzag: 0, -1, 1, -2 … are 0, 1, 2, 3 …
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/transform/levels.hpp"

namespace kvcodec {

class LevelCoder {
 public:
  /// classes: of the components, none of them dead. The tables outlive it.
  LevelCoder(const LevelTables& tables, std::vector<uint8_t> classes);

  size_t components() const { return classes_.size(); }

  /// Appends a block. levels: (components, tokens), sizes below 2^23. Returns its bytes.
  uint32_t encode(MatrixView<const int32_t> levels, std::vector<uint8_t>& out) const;

  /// Decodes consecutive blocks of `tokens` tokens each, the first one at payload[0], block i of block_bytes[i]
  /// bytes, to columns [i * tokens, (i + 1) * tokens) of levels: (components, blocks * tokens). Four of them at a
  /// time are several times as fast as one by itself. Throws Error(bad_input) for bytes that no encoder writes, sizes of
  /// 2^23 and beyond among them.
  void decode(std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes, size_t tokens,
              MatrixView<int32_t> levels) const;

 private:
  std::vector<RansRun> runs(size_t tokens) const;
  uint64_t low_bytes(size_t tokens) const;

  const LevelTables& tables_;
  std::vector<uint8_t> classes_;
  uint64_t low_bits_ = 0;  // of a token
};

}  // namespace kvcodec
