// What errors of each layer's keys and values cost a model, for codecs of which one bound, or one codebook, serves
// all layers: where errors cost more, they are to be smaller. The least cost of all for the same bits is where each
// side of each layer costs the same, so errors go with the inverse root of what a unit of their energy costs.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codec/group_shape.hpp"
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
  /// How large errors may be there relative to others: cost^-1/2, scaled to a geometric mean of 1 over all layers and
  /// sides, then rounded to three digits.
  float error_scale(int layer, Side side) const {
    return alike() ? 1.0f : scales_[static_cast<size_t>(layer)][side == Side::value];
  }

  /// Puts the scales into a record, keys of all layers and then values; nothing where all are alike.
  void write(Record& parameters) const;
  /// Reads them from a record. Throws Error(bad_input) unless there are scales of both sides of each layer, positive and
  /// finite, or none.
  static LayerWeights read(const Record& parameters);
  /// Throws Error(bad_input) if they are of a model of another number of layers.
  void check_layers(int num_layers) const;

 private:
  std::vector<std::array<float, 2>> scales_;
};

/// The parameter of codecs and books that says it; absent = all are alike.
inline constexpr std::string_view kErrorScales = "error-scales";

}  // namespace kvcodec
