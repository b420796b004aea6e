// The streams of coded blocks of the codec `kvcomp`, which lib/kvcomp/codec/codec.cpp describes: where each
// block lies, and some of them brought into memory.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/codec/places.hpp"
#include "lib/codec/stream.hpp"
#include "lib/core/lazy.hpp"
#include "lib/kvcomp/stored_blocks.hpp"

namespace kvcodec::kvcomp {

inline constexpr std::string_view kBook = "book", kModes = "modes", kSizes = "sizes", kCounts = "counts",
                                  kPayload = "payload", kSteps = "steps", kOriginBits = "origin_bits",
                                  kOrigins = "origins", kTail = "tail";

/// Streams of which a block takes any number of rows, in the order of the columns of `places`.
enum PartStream : size_t { size_part, count_part, payload_part, step_part, origin_part };
std::span<const std::string_view> part_streams(const Layout& layout);

/// The book of a document. Throws Error(bad_input) for streams that hold none.
BlockCoder read_coder(const StreamReader& document);

/// Stores the rows of `places` of blocks that are about to be appended.
void store_places(const Layout& layout, const BlockCoder& coder, const EncodedBlocks& blocks,
                  StreamStore& document);

/// The block rows of a document. Threads may read at once.
class BlockReader {
 public:
  /// document outlives this.
  BlockReader(const Layout& layout, const StreamReader& document);

  /// Counts the block rows, for the first time or after the document grew. Not while other threads read.
  void refresh();
  uint64_t rows() const { return rows_; }

  const BlockCoder& coder() const;

  /// Block rows [first, last), which are there. Throws Error(bad_input) for streams that no encoder writes.
  StoredBlocks read(uint64_t first, uint64_t last) const;

 private:
  struct BlockHead {
    uint8_t mode = 0, origin_bits = 0;
  };
  const Interval<BlockHead>& interval_of(uint64_t block) const;
  void read_heads(Interval<BlockHead>& interval, uint64_t last) const;

  Layout layout_;
  const StreamReader& document_;
  uint64_t rows_ = 0;
  Lazy<BlockCoder> coder_;
  Places<BlockHead> places_;
};

}  // namespace kvcodec::kvcomp
