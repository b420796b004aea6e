// The way from rows of a cache to signals for a dictionary, and back.
//
// A row is one token of one side of a group of L layers: [L][heads][head_dim] floats. It is one signal of L *
// heads * head_dim values (the paper's form: all heads of all layers of the group concatenated), or with
// `per_head` one signal of L * head_dim values for each head (as Lexico does, Kim et al., 2024, for L = 1).
//
// Layers differ in loudness and channels have means of their own, which would cost atoms of a dictionary that
// serves all layers. Signals can therefore be centred and normalised first:
//   center channel:   the mean of each channel of each layer, over the training data, is subtracted;
//   normalize layer:  then each layer's part is divided by that layer's root mean square;
//   normalize weights: or by the size that its errors may have beside those of other layers (given, not found), so
//   that errors count by their cost;
//   normalize signal: or each signal is divided by its own norm, which is stored beside its code (gain and
//   shape apart).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/core/checked.hpp"
#include "lib/core/names.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

enum class Normalize : uint8_t { none, layer, signal, weights };
constexpr auto names_of(Normalize) {
  return std::to_array<std::string_view>({"none", "layer", "signal", "weights"});
}
/// True if layers have scales.
constexpr bool scales_layers(Normalize normalize) {
  return normalize == Normalize::layer || normalize == Normalize::weights;
}
enum class Center : uint8_t { none, channel };
constexpr auto names_of(Center) { return std::to_array<std::string_view>({"none", "channel"}); }

/// The cut of a row into signals.
struct SignalLayout {
  int layers = 1;  ///< L, of one group
  int heads = 0;
  int head_dim = 0;
  bool per_head = false;

  size_t layer_width() const { return as_size(heads) * as_size(head_dim); }
  size_t row_width() const { return as_size(layers) * layer_width(); }
  size_t signals_per_row() const { return per_head ? as_size(heads) : 1; }
  size_t signal_width() const { return row_width() / signals_per_row(); }
};

/// Means and scales that are removed from signals before coding and restored after it. Empty vectors: none.
struct Normalization {
  Normalize normalize = Normalize::none;
  std::vector<float> layer_scale;  ///< [layers of the model], positive; where scales_layers()
  Matrix<float> channel_mean;      ///< [layers of the model, heads * head_dim]; with Center::channel

  float scale_of(size_t layer) const { return layer_scale.empty() ? 1.0f : layer_scale[layer]; }
  /// The means or scales of a layer from a channel on, or null.
  const float* mean_of(size_t layer, size_t channel) const {
    return channel_mean.size() > 0 ? &channel_mean(layer, channel) : nullptr;
  }
  Center center() const { return channel_mean.size() > 0 ? Center::channel : Center::none; }

  /// Throws Error(bad_input) unless everything is there for a model of that many layers of that width, finite, scales positive.
  void check(size_t num_layers, size_t layer_width) const;
};

/// rows: (n, layout.row_width()) of the group that begins at first_layer. Writes the signals of row i to rows
/// i * signals_per_row() … of signals: (n * signals_per_row(), signal_width()).
/// gains: n * signals_per_row() norms, filled with Normalize::signal, else left alone (it may be empty). A gain is the norm in f16; a
/// signal whose gain is 0 becomes zeros. Throws Error(bad_input) for a norm beyond f16.
void to_signals(const Normalization& normalization, const SignalLayout& layout, int first_layer,
                MatrixView<const float> rows, MatrixView<float> signals, std::span<float> gains);

/// The way back, from decoded signals to rows. The same arguments.
void from_signals(const Normalization& normalization, const SignalLayout& layout, int first_layer,
                  MatrixView<const float> signals, std::span<const float> gains, MatrixView<float> rows);

/// Finds means and scales in one pass over rows in any order; or in several, whose sums are added up.
class NormalizationFinder {
 public:
  /// layer_scale: with Normalize::weights, of all layers.
  NormalizationFinder(Normalize normalize, Center center, const SignalLayout& layout, size_t num_layers,
                      std::vector<float> layer_scale = {})
      : normalize_(normalize),
        center_(center),
        layout_(layout),
        layer_scale_(std::move(layer_scale)),
        channels_(num_layers, layout.layer_width()) {}
  /// Sums are of differences from a row like these, by default the first one. Called before any rows are added.
  void start(int first_layer, std::span<const float> row) {
    Channel* const channels = channels_.row(as_size(first_layer)).data();
    for (size_t j = 0; j < row.size(); ++j)
      if (!channels[j].started) channels[j].shift = row[j], channels[j].started = true;
  }
  void add(int first_layer, MatrixView<const float> rows);

  /// The sums so far, and those of several finders that started alike added up.
  static constexpr size_t kSumsOfChannel = 3;
  size_t count_of_sums() const { return channels_.size() * kSumsOfChannel; }
  std::vector<double> sums() const;
  void set_sums(std::span<const double> sums);
  /// Layers without rows get mean 0 and scale 1, as do layers that are constant. Throws Error(failed) where scales must
  /// be given and are not.
  Normalization finish() const;

 private:
  struct Channel {
    double shift = 0, sum = 0, squares = 0;  // of value - shift: the shift keeps sums small beside the spread
    uint64_t count = 0;
    bool started = false;
  };
  Normalize normalize_;
  Center center_;
  SignalLayout layout_;
  std::vector<float> layer_scale_;
  Matrix<Channel> channels_;  // [layers of the model, layer_width]
};

}  // namespace kvcodec
