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

/// One document's blocks there: what was brought for one call serves the next ones. Its blocks stay what they
/// are; more may come behind them. Threads may share it. False: left to the caller, and what was to be written
/// holds nothing.
class BlocksElsewhere {
 public:
  virtual ~BlocksElsewhere() = default;

  /// Tokens [first, first + out.rows()) of the document, all of them in blocks: (n, layout.width()).
  virtual bool decode(uint64_t first, MatrixView<float> out) = 0;

  /// As DocumentView::multiply_keys and multiply_values, of tokens that are all in blocks.
  virtual bool multiply_keys(uint64_t first, MatrixView<const float> queries, MatrixView<float> out) = 0;
  virtual bool multiply_values(uint64_t first, MatrixView<const float> weights, MatrixView<float> out) = 0;
};

/// Threads may share it. Nothing: left to the caller. What it gives is what the codec makes, bit for bit, but
/// products: of n terms they are within (2 n + 16) 2^-24 times the sum of the terms' magnitudes of exact ones,
/// where of keys levels and origins are terms apart; and products with keys also drop what is below 2^-35 of a
/// block's largest query x step: up to n 2^-28 times that.
class BlockEngine {
 public:
  virtual ~BlockEngine() = default;

  /// values: (whole block rows of tokens, layout.width()), finite and of `storage`. Symbols have the steps
  /// and origins of quantize_bounded.
  virtual std::optional<EncodedBlocks> encode(const Layout& layout, DType storage, const ErrorBound& bound,
                                              const BlockCoder& coder,
                                              MatrixView<const uint16_t> values) const = 0;
  /// How often each of the 256 symbols of the same occurs.
  virtual std::optional<std::vector<uint64_t>> count_symbols(const Layout& layout, DType storage,
                                                             const ErrorBound& bound,
                                                             MatrixView<const uint16_t> values) const = 0;

  /// Block rows [first, last) of a document; throws Error(bad_input) for streams that no encoder writes.
  using ReadBlocks = std::function<StoredBlocks(uint64_t first, uint64_t last)>;
  /// A document whose blocks are coded so; `read`, and this, outlive it.
  virtual std::unique_ptr<BlocksElsewhere> document(const Layout& layout, DType storage,
                                                    const BlockCoder& coder, ReadBlocks read) const = 0;
};

}  // namespace kvcodec::kvcomp
