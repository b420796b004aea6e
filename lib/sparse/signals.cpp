#include "lib/sparse/signals.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/nearest.hpp"

namespace kvcodec {

/// Rows per piece of work: enough to hide the hand-over.
constexpr size_t kRowsPerPiece = 64;

/// Calls body(j, layer, channel, in_row, in_signal) for the values that a layer of the group has in signal j, where they lie in their row
/// and in the signal; channel: the first of them within the layer. Runs in parallel over the rows.
template <class Row, class Signal, class Body>
static void for_each_part(const SignalLayout& layout, MatrixView<Row> rows, MatrixView<Signal> signals,
                          const Body& body) {
  const size_t per_row = layout.signals_per_row(), length = layout.layer_width() / per_row;
  if (rows.cols() != layout.row_width() || signals.cols() != layout.signal_width() ||
      signals.rows() != rows.rows() * per_row)
    throw failed("rows ({}, {}) and signals ({}, {}) do not fit together", rows.rows(), rows.cols(),
                 signals.rows(), signals.cols());
  parallel_each(rows.rows(), kRowsPerPiece, [&](size_t i) {
    for (size_t layer = 0; layer < as_size(layout.layers); ++layer)
      for (size_t part = 0; part < per_row; ++part)
        body(i * per_row + part, layer, part * length,
             rows.row(i).subspan((layer * per_row + part) * length, length),
             signals.row(i * per_row + part).subspan(layer * length, length));
  });
}

void Normalization::check(size_t num_layers, size_t layer_width) const {
  if (layer_scale.size() != (scales_layers(normalize) ? num_layers : 0))
    throw bad_input("{} layer scales for a model of {} layers, normalized by {}", layer_scale.size(),
                    num_layers, name_of(normalize));
  for (size_t i = 0; i < layer_scale.size(); ++i)
    if (!(layer_scale[i] > 0 && std::isfinite(1 / layer_scale[i]) && std::isfinite(layer_scale[i])))
      throw bad_input("the scale of layer {} is {}; it must be positive", i, layer_scale[i]);
  if (channel_mean.size() == 0) return;
  if (channel_mean.rows() != num_layers || channel_mean.cols() != layer_width)
    throw bad_input("channel means ({}, {}) for a model of {} layers of width {}", channel_mean.rows(),
                    channel_mean.cols(), num_layers, layer_width);
  for (size_t i = 0; i < channel_mean.size(); ++i)
    if (!std::isfinite(channel_mean.data()[i]))
      throw bad_input("the mean of channel {} of layer {} is not finite", i % layer_width, i / layer_width);
}

void to_signals(const Normalization& normalization, const SignalLayout& layout, int first_layer,
                MatrixView<const float> rows, MatrixView<float> signals, std::span<float> gains) {
  for_each_part(layout, rows, signals,
                [&](size_t, size_t layer, size_t channel, std::span<const float> in, std::span<float> out) {
                  layer += as_size(first_layer);
                  const float scale = normalization.scale_of(layer);
                  const float* mean = normalization.mean_of(layer, channel);
                  for (size_t c = 0; c < in.size(); ++c) out[c] = (mean ? in[c] - mean[c] : in[c]) / scale;
                });
  if (normalization.normalize != Normalize::signal) return;
  parallel_each(signals.rows(), kRowsPerPiece, [&](size_t j) {
    const auto norm = static_cast<float>(std::sqrt(squared_norm(signals.row(j))));
    gains[j] = round_to(DType::f16, norm);
    if (!std::isfinite(gains[j]))
      throw bad_input("row {}: a signal of norm {} is beyond the range of f16 gains",
                      j / layout.signals_per_row(), norm);
    for (float& value : signals.row(j)) value = gains[j] > 0 ? value / gains[j] : 0.0f;
  });
}

void from_signals(const Normalization& normalization, const SignalLayout& layout, int first_layer,
                  MatrixView<const float> signals, std::span<const float> gains, MatrixView<float> rows) {
  const bool gained = normalization.normalize == Normalize::signal;
  for_each_part(layout, rows, signals,
                [&](size_t j, size_t layer, size_t channel, std::span<float> out, std::span<const float> in) {
                  layer += as_size(first_layer);
                  const float scale = gained ? gains[j] : normalization.scale_of(layer);
                  const float* mean = normalization.mean_of(layer, channel);
                  for (size_t c = 0; c < in.size(); ++c)
                    out[c] = mean ? in[c] * scale + mean[c] : in[c] * scale;
                });
}

std::vector<double> NormalizationFinder::sums() const {
  std::vector<double> sums;
  sums.reserve(count_of_sums());
  for (size_t i = 0; i < channels_.size(); ++i) {
    const Channel& channel = channels_.data()[i];
    sums.insert(sums.end(), {channel.sum, channel.squares, static_cast<double>(channel.count)});
  }
  return sums;
}

void NormalizationFinder::set_sums(std::span<const double> sums) {
  if (sums.size() != count_of_sums()) throw failed("{} sums of {} channels", sums.size(), channels_.size());
  for (size_t i = 0; i < channels_.size(); ++i) {
    Channel& channel = channels_.data()[i];
    const double* const of_channel = &sums[i * kSumsOfChannel];
    channel.sum = of_channel[0], channel.squares = of_channel[1];
    channel.count = static_cast<uint64_t>(of_channel[2]);
  }
}

void NormalizationFinder::add(int first_layer, MatrixView<const float> rows) {
  if (rows.rows() == 0) return;
  start(first_layer, rows.row(0));
  Channel* const channels = channels_.row(as_size(first_layer)).data();
  // By columns, so that every sum runs over the rows in order, whatever the number of threads.
  parallel_for(rows.cols(), 64, [&](size_t begin, size_t end, int) {
    for (size_t j = begin; j < end; ++j) channels[j].count += rows.rows();
    for (size_t i = 0; i < rows.rows(); ++i)
      for (size_t j = begin; j < end; ++j) {
        const double value = double{rows(i, j)} - channels[j].shift;
        channels[j].sum += value;
        channels[j].squares += value * value;
      }
  });
}

Normalization NormalizationFinder::finish() const {
  Normalization result;
  result.normalize = normalize_;
  if (normalize_ == Normalize::weights) {
    if (layer_scale_.size() != channels_.rows())
      throw failed("{} scales for {} layers", layer_scale_.size(), channels_.rows());
    result.layer_scale = layer_scale_;
  }
  const size_t width = layout_.layer_width();
  if (center_ == Center::channel) result.channel_mean = Matrix<float>(channels_.rows(), width);
  for (size_t layer = 0; layer < channels_.rows(); ++layer) {
    double energy = 0, count = 0;
    for (size_t j = 0; j < width; ++j) {
      const Channel& channel = channels_(layer, j);
      if (channel.count == 0) continue;
      const auto n = static_cast<double>(channel.count);
      const double mean = channel.sum / n;  // beside the shift
      const double taken = center_ == Center::channel ? mean : -channel.shift;
      // sum of (value - taken)^2 for value = what was summed
      energy += std::max(channel.squares - 2 * taken * channel.sum + n * taken * taken, 0.0);
      count += n;
      if (center_ == Center::channel)
        result.channel_mean(layer, j) = static_cast<float>(channel.shift + mean);
    }
    if (normalize_ != Normalize::layer) continue;
    const auto scale = static_cast<float>(std::sqrt(energy / std::max(count, 1.0)));
    // A constant layer leaves nothing to scale, and a subnormal scale has no inverse.
    result.layer_scale.push_back(scale >= std::numeric_limits<float>::min() ? scale : 1.0f);
  }
  return result;
}

}  // namespace kvcodec
