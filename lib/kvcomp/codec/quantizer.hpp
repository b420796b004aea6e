// How tokens become symbols: what the survey and append of the codec `kvcomp` share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"
#include "lib/engine/engine.hpp"
#include "lib/kvcomp/block_engine.hpp"
#include "lib/kvcomp/codec/options.hpp"

namespace kvcodec::kvcomp {

/// Quantizes one side of a layer group.
class Quantizer {
 public:
  /// engine: may be nullptr; outlives this.
  Quantizer(const KvcompOptions& options, const GroupShape& shape, DType storage, Engine* engine)
      : side_(shape.side),
        layout_(layout_of(options, shape)),
        storage_(storage),
        engine_(engine),
        has_limits_(kvcomp::has_limits(options, shape.side)),
        bound_{.range = (side_ == Side::key ? options.key_rel : options.value_rel) / 2,
               .absolute = options.max_error *
                           static_cast<double>(options.weights.error_scale(shape.first_layer, shape.side)),
               .magnitude = options.max_rel_error} {}

  const Layout& layout() const { return layout_; }
  DType storage() const { return storage_; }
  bool has_limits() const { return has_limits_; }
  size_t limits() const { return layout_.heads * limits_per_head(layout_); }

  /// The bound of the options, and that errors are at most `limit` as well; limit 0: the options' bound alone.
  ErrorBound bound(float limit = 0) const {
    ErrorBound bound = bound_;
    const double own = bound_.absolute;
    bound.absolute = own > 0 && limit > 0 ? std::min<double>(own, limit) : std::max<double>(own, limit);
    return bound;
  }

  /// Quantizes one block row. rows: (n, width), at most a block of tokens, values that 16 bits hold exactly. Written:
  /// steps, heads * layout().steps() or, if heads share them, layout().steps(); origins (heads,
  /// layout().origins()); symbols (n, width). limits: of errors, limits() of them, or empty.
  void quantize(std::span<const float> limits, MatrixView<const float> rows, std::span<float> steps,
                std::span<int16_t> origins, MatrixView<uint8_t> symbols) const;

  /// The device that quantizes whole block rows in place of quantize(), or nullptr.
  const BlockEngine* device() const;

 private:
  Side side_;
  Layout layout_;
  DType storage_;
  Engine* engine_;
  bool has_limits_;
  ErrorBound bound_;
};

}  // namespace kvcodec::kvcomp
