#include "lib/sparse/codec/view.hpp"

#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec::sparse {

SparseView::Codes SparseView::read(uint64_t first, uint64_t count) const {
  SparsePairs pairs = reader_.read(first, count);
  Codes codes;
  codes.coefficients = dequantize_coefficients(form_.coefficients, pairs);
  codes.ids = std::move(pairs.ids);
  codes.offsets.reserve(pairs.counts.size() + 1);
  codes.offsets.push_back(0);
  for (const uint32_t of_signal : pairs.counts) codes.offsets.push_back(codes.offsets.back() + of_signal);
  codes.gains.resize(pairs.gains.size());
  widen(DType::f16, pairs.gains, codes.gains);
  for (size_t i = 0; i < codes.gains.size(); ++i)
    if (!std::isfinite(codes.gains[i]))
      throw bad_input("stream 'gain': that of signal {} is not finite",
                      first * layout_.signals_per_row() + i);
  return codes;
}

void SparseView::decode_rows(uint64_t first, MatrixView<float> out) const {
  const Codes codes = read(first, out.rows());
  if (out.rows() == 0) return;
  if (layout_.per_head) {
    Matrix<float> values(codes.offsets.size() - 1, layout_.signal_width());
    coder_.reconstruct(codes.view(), values);
    from_signals(coder_.normalization(), layout_, shape().first_layer, values, codes.gains, out);
    return;
  }
  // A token is one signal, in the order of the row: what from_signals does can be done on the way out.
  const Normalization& normalization = coder_.normalization();
  std::vector<float> scale;
  Finishing finishing{.gains = codes.gains, .scale = {}, .mean = {}};
  const auto layer = static_cast<size_t>(shape().first_layer), layers = static_cast<size_t>(shape().layers);
  if (scales_layers(normalization.normalize)) {
    for (size_t i = 0; i < layers; ++i)
      scale.insert(scale.end(), layout_.layer_width(), normalization.layer_scale[layer + i]);
    finishing.scale = scale;
  }
  if (normalization.center() == Center::channel)
    finishing.mean = {normalization.channel_mean.row(layer).data(), layers * layout_.layer_width()};
  coder_.reconstruct(codes.view(), out, finishing);
}

}  // namespace kvcodec::sparse
