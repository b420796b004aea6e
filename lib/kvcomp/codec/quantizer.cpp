#include "lib/kvcomp/codec/quantizer.hpp"

#include <vector>

namespace kvcodec::kvcomp {

void Quantizer::quantize(std::span<const float> limits, MatrixView<const float> rows, std::span<float> steps,
                         std::span<int16_t> origins, MatrixView<uint8_t> symbols) const {
  const size_t d = layout_.block.dims;
  const size_t per_head = layout_.unit == UnitShape::row ? rows.rows() : layout_.steps();
  std::vector<float> bounds(per_head);
  if (layout_.shared_steps) {
    const float limit = limits.empty() ? 0 : *std::ranges::min_element(limits);
    fit_steps(rows, layout_.unit, bound(limit), storage_, steps.first(per_head), bounds);
  }
  for (size_t head = 0; head < layout_.heads; ++head) {
    const auto x = rows.columns(head * d, d);
    const auto own = layout_.shared_steps ? steps.first(per_head) : steps.subspan(head * per_head, per_head);
    const auto own_origins = origins.subspan(head * layout_.origins(), layout_.origins());
    const auto own_symbols = symbols.columns(head * d, d);
    const bool limit_per_channel = layout_.unit == UnitShape::column && !limits.empty();
    if (!layout_.shared_steps && !limit_per_channel) {  // steps and symbols in one go
      const float limit = limits.empty() ? 0 : limits[head];
      quantize_bounded(x, layout_.unit, bound(limit), storage_, own, own_origins, own_symbols);
      continue;
    }
    if (limit_per_channel)
      for (size_t c = 0; c < d; ++c)
        fit_steps(x.columns(c, 1), layout_.unit, bound(limits[head * d + c]), storage_, own.subspan(c, 1),
                  std::span(bounds).subspan(c, 1));
    quantize_with(x, layout_.unit, own, bounds, storage_, own_origins, own_symbols);
  }
}

const BlockEngine* Quantizer::device() const {
  const BlockEngine* const device = engine_ ? engine_->make<BlockEngine>() : nullptr;
  if (!device) return nullptr;
  if (has_limits_) engine_->fall_back("kvcomp: keys with --max-logit-error");
  if (layout_.shared_steps) engine_->fall_back("kvcomp: steps that heads share");
  return has_limits_ || layout_.shared_steps ? nullptr : device;
}

}  // namespace kvcodec::kvcomp
