// The shape of a layer in a cache, and of a codec's unit: one side of some consecutive layers, or both sides of them together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "lib/core/names.hpp"

namespace kvcodec {

enum class Side : uint8_t {
  key,
  value,
  both,  ///< keys and values in one row, for codecs that code them jointly
};
constexpr auto names_of(Side) { return std::to_array<std::string_view>({"key", "value", "both"}); }

/// The sides of a cache.
inline constexpr Side kSides[] = {Side::key, Side::value};
/// The only side of a codec that codes keys and values jointly.
inline constexpr Side kJointly[] = {Side::both};

/// The sides of the cache that a row of `side` holds: that side, or keys and values.
constexpr std::span<const Side> sides_in(Side side) {
  return side == Side::both ? std::span<const Side>(kSides)
                            : std::span<const Side>(kSides).subspan(side == Side::value, 1);
}

/// The shape of a token's keys and values in one layer of a cache.
struct LayerShape {
  int heads = 0;      ///< key/value heads; 0: the layer keeps nothing of its own
  int key_dim = 0;    ///< dimensions of a head's key …
  int value_dim = 0;  ///< … and of its value
  /// A head's value is the first value_dim dimensions of its key, and values are not stored (the latent attention of DeepSeek-V2).
  bool values_in_keys = false;
  /// For a layer without keys and values of its own, the layer whose keys and values its queries use; -1: there is none.
  int source = -1;

  /// Stored dimensions of a head's key or value; 0 if it is not stored.
  int stored_dim(Side side) const { return side == Side::key ? key_dim : values_in_keys ? 0 : value_dim; }
  /// Stored numbers of a token, for all heads: of one side, and of both.
  size_t width(Side side) const { return static_cast<size_t>(heads) * static_cast<size_t>(stored_dim(side)); }
  size_t width() const { return width(Side::key) + width(Side::value); }
  bool operator==(const LayerShape&) const = default;
};

/// Layers of one shape, the usual one.
constexpr LayerShape usual_layer(int heads, int head_dim) {
  return {.heads = heads, .key_dim = head_dim, .value_dim = head_dim};
}

/// A side of `layers` consecutive layers. One row is one token: its [layers][heads][head_dim] floats; with both sides
/// its keys and behind them its values, each in that order.
struct GroupShape {
  int first_layer = 0;
  int layers = 1;
  int heads = 0;
  int head_dim = 0;  ///< of that side; of each side where a row has both
  Side side = Side::key;

  /// Heads of all its layers, and dimensions of each.
  size_t all_heads() const { return static_cast<size_t>(layers) * static_cast<size_t>(heads); }
  size_t dims() const { return static_cast<size_t>(head_dim); }
  size_t width() const { return sides_in(side).size() * side_width(); }
  /// Number of values of a row for each of its sides.
  size_t side_width() const { return all_heads() * dims(); }
  /// The column of a row at which its side `held` begins.
  size_t column_of(Side held) const { return side == Side::both && held == Side::value ? side_width() : 0; }
};

/// The same layers on another side, whose heads must have as many dimensions.
constexpr GroupShape of_side(GroupShape shape, Side side) {
  shape.side = side;
  return shape;
}

}  // namespace kvcodec
