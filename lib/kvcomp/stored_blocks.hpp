// Block rows of the codec `kvcomp` (one block of each head) in the form of its streams, in memory; and the interface
// of a device that computes with them in place of this processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"
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
  uint64_t window = 0;        // newest tokens that wait, beside those short of a block

  size_t width() const { return heads * block.dims; }
  /// Steps of a block, or of a whole block row if they are shared.
  size_t steps() const {
    return unit == UnitShape::column ? block.dims : unit == UnitShape::row ? block.tokens : 1;
  }
  size_t row_steps() const { return shared_steps ? steps() : heads * steps(); }
  size_t origins() const { return has_origins ? block.dims : 0; }
  size_t origin_bytes(uint8_t bits) const { return 2 + (block.dims * bits + 7) / 8; }

  /// Block rows of a document of so many tokens.
  uint64_t block_rows_of(uint64_t tokens) const {
    return pays && tokens > window ? (tokens - window) / block.tokens : 0;
  }
};

/// Some block rows of a document.
struct StoredBlocks {
  /// A block's range of one of the arrays below.
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

/// Coded block rows: the data that encoding appends to each stream.
struct EncodedBlocks {
  std::vector<uint8_t> modes, counts, payload, origin_bits, origins;
  std::vector<uint32_t> sizes;
  std::vector<uint16_t> steps;  ///< f16

  /// Adds block rows that follow these.
  void append(const EncodedBlocks& more) {
    const auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    add(modes, more.modes), add(counts, more.counts), add(payload, more.payload);
    add(origin_bits, more.origin_bits), add(origins, more.origins);
    add(sizes, more.sizes), add(steps, more.steps);
  }
};

/// One document's blocks on a device: blocks that it copied for one call serve later calls. The document's
/// blocks never change, but new ones may follow. Threads may share it. False: declined; the output is
/// unspecified, and the caller computes all of it.
class BlocksElsewhere {
 public:
  virtual ~BlocksElsewhere() = default;

  /// Tokens [first, first + out.rows()) of the document, all of them in blocks: (n, layout.width()).
  virtual bool decode(uint64_t first, MatrixView<float> out) = 0;

  /// As DocumentView::multiply of keys and of values, of tokens that are all in blocks.
  virtual bool multiply_keys(uint64_t first, MatrixView<const float> queries, MatrixView<float> out) = 0;
  virtual bool multiply_values(uint64_t first, MatrixView<const float> weights, MatrixView<float> out) = 0;
};

/// Threads may share it. std::nullopt, nullptr: declined, the caller does the work. Results are the codec's
/// bit for bit, except products. A product of n terms is off by at most (2 n + 16) 2^-24 times the sum of the
/// terms' magnitudes; with keys, query x level x step and query x origin x step count as separate terms.
/// Products with keys also drop what is below 2^-35 of the block's largest query x step, and so are off by up
/// to n 2^-28 times that.
class BlockEngine {
 public:
  /// For Engine::make: the engine owns it.
  using Factory = const BlockEngine*();
  virtual ~BlockEngine() = default;

  /// values: (whole block rows of tokens, layout.width()), finite and of `storage`. Symbols have the steps
  /// and origins of quantize_bounded.
  virtual std::optional<EncodedBlocks> encode(const Layout& layout, DType storage, const ErrorBound& bound,
                                              const BlockCoder& coder,
                                              MatrixView<const uint16_t> values) const = 0;
  /// Count of each of the 256 symbols that encode() would code for these values.
  virtual std::optional<std::vector<uint64_t>> count_symbols(const Layout& layout, DType storage,
                                                             const ErrorBound& bound,
                                                             MatrixView<const uint16_t> values) const = 0;

  /// Block rows [first, last) of a document; throws Error(bad_input) for streams that no encoder writes.
  using ReadBlocks = std::function<StoredBlocks(uint64_t first, uint64_t last)>;
  /// A document whose blocks are coded with `coder`, to be copied to the device when needed. `read` and this engine
  /// outlive the result.
  virtual std::unique_ptr<BlocksElsewhere> document(const Layout& layout, DType storage,
                                                    const BlockCoder& coder, ReadBlocks read) const = 0;
};

}  // namespace kvcodec::kvcomp
