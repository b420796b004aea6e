// Block rows of the codec `kvcomp` (one block of each head) as they lie in its streams, brought into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/kvcomp/block.hpp"
#include "lib/quant/error_bounded.hpp"

namespace kvcodec::kvcomp {

/// Sizes that follow from options and shape.
struct Layout {
  BlockShape block;
  size_t heads = 0;
  UnitShape unit = UnitShape::row;
  bool has_origins = false;
  bool shared_steps = false;  // by all heads of a block row
  bool pays = true;           // blocks may be smaller than their values

  size_t width() const { return heads * block.dims; }
  /// Steps of a block, or of a whole block row if they are shared.
  size_t steps() const {
    return unit == UnitShape::column ? block.dims : unit == UnitShape::row ? block.tokens : 1;
  }
  size_t row_steps() const { return shared_steps ? steps() : heads * steps(); }
  size_t origins() const { return has_origins ? block.dims : 0; }
  size_t origin_bytes(uint8_t bits) const { return 2 + (block.dims * bits + 7) / 8; }
};

/// Some block rows of a document.
struct StoredBlocks {
  /// A range of one of the arrays below: what a block has there.
  struct Part {
    uint64_t start = 0, size = 0;
  };
  struct Block {
    uint8_t mode = 0, origin_bits = 0;
    Part payload, counts, origins;  ///< bytes
    Part steps;
  };

  BlockCoder coder;
  std::vector<uint8_t> payload, counts, origins;
  std::vector<uint16_t> steps;  ///< f16, finite and >= 0
  std::vector<Block> blocks;    ///< [row][head]
};

/// Coded block rows: what encoding appends to each stream.
struct EncodedBlocks {
  std::vector<uint8_t> modes, counts, payload, origin_bits, origins;
  std::vector<uint32_t> sizes;
  std::vector<uint16_t> steps;  ///< f16
};

}  // namespace kvcodec::kvcomp
