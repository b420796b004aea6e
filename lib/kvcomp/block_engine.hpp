// What computes with whole blocks of the codec `kvcomp` in place of this processor: a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"
#include "lib/kvcomp/stored_blocks.hpp"

namespace kvcodec::kvcomp {

/// One document's blocks on a device: blocks that it copied for one call serve later calls. The document's
/// blocks never change, but new ones may follow. Threads may share it. False: declined; the output is
/// unspecified, and the caller computes all of it.
class BlocksElsewhere {
 public:
  virtual ~BlocksElsewhere() = default;

  /// Tokens [first, first + out.rows()) of the document, all of them in blocks: (n, layout.width()).
  virtual bool decode(uint64_t first, MatrixView<float> out) = 0;

  /// As DocumentView::multiply_keys and multiply_values, of tokens that are all in blocks.
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
  /// How often each of the 256 symbols occurs that encode() would code for these values.
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
