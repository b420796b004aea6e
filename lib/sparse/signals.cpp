#include "lib/sparse/signals.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

/// Rows per piece of work: enough to hide the hand-over.
constexpr size_t kRowsPerPiece = 64;

/// Where the values of one layer and head lie: `from` in a row, `to` in its signal number `signal`.
struct Segment {
  size_t from = 0, signal = 0, to = 0, length = 0;
  size_t layer = 0, channel = 0;  // layer within the group, first channel within the layer
};

std::vector<Segment> segments_of(const SignalLayout& layout) {
  const auto layers = static_cast<size_t>(layout.layers), heads = static_cast<size_t>(layout.heads);
  const auto dim = static_cast<size_t>(layout.head_dim);
  std::vector<Segment> segments;
  for (size_t layer = 0; layer < layers; ++layer) {
    if (!layout.per_head) {
      const size_t width = layout.layer_width();
      segments.push_back({layer * width, 0, layer * width, width, layer, 0});
      continue;
    }
    for (size_t head = 0; head < heads; ++head)
      segments.push_back({layer * heads * dim + head * dim, head, layer * dim, dim, layer, head * dim});
  }
  return segments;
}

float norm_of(std::span<const float> signal) {
  double energy = 0;
  for (const float value : signal) energy += double{value} * value;
  return static_cast<float>(std::sqrt(energy));
}

void check_shapes(const SignalLayout& layout, MatrixView<const float> rows, MatrixView<const float> signals) {
  if (rows.cols() != layout.row_width() || signals.cols() != layout.signal_width() ||
      signals.rows() != rows.rows() * layout.signals_per_row())
    throw failed("rows ({}, {}) and signals ({}, {}) do not fit together", rows.rows(), rows.cols(),
                 signals.rows(), signals.cols());
}

}  // namespace

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
  check_shapes(layout, rows, signals);
  const std::vector<Segment> segments = segments_of(layout);
  const size_t per_row = layout.signals_per_row();
  parallel_for(rows.rows(), kRowsPerPiece, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      for (const Segment& segment : segments) {
        const size_t layer = static_cast<size_t>(first_layer) + segment.layer;
        const float* in = rows.row(i).data() + segment.from;
        float* out = signals.row(i * per_row + segment.signal).data() + segment.to;
        const float scale = normalization.scale_of(layer);
        if (normalization.channel_mean.size() > 0) {
          const float* mean = normalization.channel_mean.row(layer).data() + segment.channel;
          for (size_t c = 0; c < segment.length; ++c) out[c] = (in[c] - mean[c]) / scale;
        } else {
          for (size_t c = 0; c < segment.length; ++c) out[c] = in[c] / scale;
        }
      }
      if (normalization.normalize != Normalize::signal) continue;
      for (size_t j = i * per_row; j < (i + 1) * per_row; ++j) {
        const auto signal = signals.row(j);
        const float norm = norm_of(signal), gain = round_to(DType::f16, norm);
        if (!std::isfinite(gain))
          throw bad_input("row {}: a signal of norm {} is beyond the range of f16 gains", i, norm);
        gains[j] = gain;
        for (float& value : signal) value = gain > 0 ? value / gain : 0.0f;
      }
    }
  });
}

void from_signals(const Normalization& normalization, const SignalLayout& layout, int first_layer,
                  MatrixView<const float> signals, std::span<const float> gains, MatrixView<float> rows) {
  check_shapes(layout, rows, signals);
  const std::vector<Segment> segments = segments_of(layout);
  const size_t per_row = layout.signals_per_row();
  const bool gained = normalization.normalize == Normalize::signal;
  parallel_for(rows.rows(), kRowsPerPiece, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i)
      for (const Segment& segment : segments) {
        const size_t layer = static_cast<size_t>(first_layer) + segment.layer,
                     j = i * per_row + segment.signal;
        const float* in = signals.row(j).data() + segment.to;
        float* out = rows.row(i).data() + segment.from;
        const float scale = gained ? gains[j] : normalization.scale_of(layer);
        if (normalization.channel_mean.size() > 0) {
          const float* mean = normalization.channel_mean.row(layer).data() + segment.channel;
          for (size_t c = 0; c < segment.length; ++c) out[c] = in[c] * scale + mean[c];
        } else {
          for (size_t c = 0; c < segment.length; ++c) out[c] = in[c] * scale;
        }
      }
  });
}

NormalizationFinder::NormalizationFinder(Normalize normalize, Center center, const SignalLayout& layout,
                                         size_t num_layers, std::vector<float> layer_scale)
    : normalize_(normalize),
      center_(center),
      layout_(layout),
      layer_scale_(std::move(layer_scale)),
      channels_(num_layers, layout.layer_width()) {}

void NormalizationFinder::start(int first_layer, std::span<const float> row) {
  const size_t width = layout_.layer_width();
  for (size_t j = 0; j < row.size(); ++j) {
    Channel& channel = channels_(static_cast<size_t>(first_layer) + j / width, j % width);
    if (!channel.started) channel.shift = row[j], channel.started = true;
  }
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
  const size_t width = layout_.layer_width();
  // By columns, so that every sum runs over the rows in order, whatever the number of threads.
  parallel_for(rows.cols(), 64, [&](size_t begin, size_t end, int) {
    for (size_t j = begin; j < end; ++j) {
      Channel& channel = channels_(static_cast<size_t>(first_layer) + j / width, j % width);
      channel.count += rows.rows();
    }
    for (size_t i = 0; i < rows.rows(); ++i)
      for (size_t j = begin; j < end; ++j) {
        Channel& channel = channels_(static_cast<size_t>(first_layer) + j / width, j % width);
        const double value = double{rows(i, j)} - channel.shift;
        channel.sum += value;
        channel.squares += value * value;
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
