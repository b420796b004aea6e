// Weights of errors, and numbers of bits, that differ from layer to layer and between keys and values.
//
// A weight is the cost to a model of errors in a layer's keys or values. Weights are for codecs with one bound, or one codebook,
// for all layers: where errors cost more, they should be smaller. The total cost for the same bits is lowest where each side
// of each layer costs the same, so the size of errors is made proportional to 1 / sqrt(cost of a unit of their energy).
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/options.hpp"
#include "lib/core/record.hpp"

namespace kvcodec {

class LayerWeights {
 public:
  /// All layers and sides alike.
  LayerWeights() = default;
  /// costs: of a unit of error energy in each layer's keys and values, in any unit. Throws Error(failed) for costs that are
  /// not positive and finite.
  explicit LayerWeights(std::span<const std::array<double, 2>> costs);

  bool alike() const { return scales_.empty(); }
  /// Number of layers; 0 where all are alike.
  size_t layers() const { return scales_.size(); }
  /// The allowed size of errors there relative to others: cost^-1/2, scaled to a geometric mean of 1 over all layers and
  /// sides, then rounded to three digits.
  float error_scale(int layer, Side side) const {
    return alike() ? 1.0f : scales_[as_size(layer)][side == Side::value];
  }

  /// Those of some layers of the model, in their order.
  LayerWeights of(std::span<const int> layers) const {
    LayerWeights some;
    if (alike()) return some;
    some.scales_.reserve(layers.size());
    for (const int layer : layers) some.scales_.push_back(scales_[as_size(layer)]);
    return some;
  }

  /// Puts the scales into a record, keys of all layers and then values; nothing where all are alike.
  void write(Record& parameters) const;
  /// Reads them from a record. Throws Error(bad_input) unless there are scales of both sides of each layer, positive and finite, or none.
  static LayerWeights read(const Record& parameters);
  /// Throws Error(bad_input) if they are of a model of another number of layers.
  void check_layers(int num_layers) const;

 private:
  std::vector<std::array<float, 2>> scales_;
};

/// Name of the parameter that holds the scales in records of codecs and books; absent: all are alike.
inline constexpr std::string_view kErrorScales = "error-scales";

/// Options of codecs whose bits may differ from layer to layer.
struct BitOptions : Options {
  int64_t bits = 0;        ///< per value
  std::string layer_bits;  ///< of all layers' keys, then of their values: "3 3 2 4 4 3"; empty: `bits`

  OptionField layer_bits_field() {
    return {
        .name = "layer-bits",
        .help =
            "bits of all layers' keys, then of all their values, as '3 2 2 3'; --total-bits finds them with "
            "--weights (default: --bits for all)",
        .target = &layer_bits};
  }
  /// The options, without layer-bits where it is empty.
  Record record() {
    const Record all = to_record(*this);
    Record rest;
    for (const auto& [name, value] : all.items())
      if (name != "layer-bits" || !layer_bits.empty()) rest.set(name, value);
    return rest;
  }

  /// Dial::turn. Sets only the whole bits. For the fraction, the caller (cli/search/goal.cpp) gives some layers and sides one bit more.
  static void turn(Options& options, double setting, bool) {
    dynamic_cast<BitOptions&>(options).bits = static_cast<int64_t>(std::floor(setting));
  }

 protected:
  explicit BitOptions(int64_t default_bits) : bits(default_bits) {}
};

/// The bits of each layer's keys and values that options give.
class LayerBits {
 public:
  /// Throws Error(usage) unless layer-bits is empty or has two integers for each layer, all from `lowest` to `highest`.
  LayerBits(const BitOptions& options, int64_t lowest, int64_t highest, int num_layers);

  unsigned of(int layer, Side side) const {
    const size_t place = as_size(layer) + (side == Side::value ? layers_ : 0);
    return static_cast<unsigned>(numbers_.empty() ? bits_ : numbers_[place]);
  }

 private:
  size_t layers_;
  int64_t bits_;
  std::vector<int64_t> numbers_;  // keys of all layers, then values
};

/// Numbers of all layers for keys, then for values, as the text that the option layer-bits takes.
inline std::string layer_numbers_text(std::span<const int64_t> numbers) {
  return fmt::format("{}", fmt::join(numbers, " "));
}

}  // namespace kvcodec
