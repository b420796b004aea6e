// The shape of a layer in a cache, and of a codec's unit: one side of some layers, or both sides of them together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

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
  constexpr int stored_dim(Side side) const {
    return side == Side::key ? key_dim : values_in_keys ? 0 : value_dim;
  }
  /// Stored numbers of a token, for all heads: of one side, and of both.
  size_t width(Side side) const { return static_cast<size_t>(heads) * static_cast<size_t>(stored_dim(side)); }
  size_t width() const { return width(Side::key) + width(Side::value); }
  bool operator==(const LayerShape&) const = default;
  bool same_rows(const LayerShape& other) const {
    return heads == other.heads && key_dim == other.key_dim &&
           stored_dim(Side::value) == other.stored_dim(Side::value);
  }
  /// The largest number that divides heads of both sides: values that share a class in first tokens.
  size_t values_of_class() const { return static_cast<size_t>(std::gcd(key_dim, stored_dim(Side::value))); }
};

/// Layers of one shape, the usual one.
constexpr LayerShape usual_layer(int heads, int head_dim) {
  return {.heads = heads, .key_dim = head_dim, .value_dim = head_dim};
}

/// Dimensions of values in books: as many as those of keys; else they are given, 0 where values lie in keys.
inline constexpr int kAsKeys = -1;
constexpr LayerShape layer_of(int heads, int key_dim, int value_dim) {
  return {.heads = heads,
          .key_dim = key_dim,
          .value_dim = value_dim == kAsKeys ? key_dim : value_dim,
          .values_in_keys = value_dim == 0};
}
constexpr int value_dim_of(const LayerShape& layer) {
  return layer.stored_dim(Side::value) == layer.key_dim ? kAsKeys : layer.stored_dim(Side::value);
}

/// Layers first, first + 1 …
inline std::vector<int> consecutive(int first, int count) {
  std::vector<int> layers(static_cast<size_t>(count));
  std::iota(layers.begin(), layers.end(), first);
  return layers;
}

/// A side of a group of layers. One row is one token: its [layers][heads][head_dim] floats; with both sides its keys and behind them its
/// values, each in that order.
struct GroupShape {
  std::vector<int> layers = {0};  ///< rising
  LayerShape layer = {};          ///< of each of them
  Side side = Side::key;

  int first_layer() const { return layers.front(); }
  int heads() const { return layer.heads; }  ///< of a layer
  /// The number among its layers of one of the model's; layers.size() if it is none of them.
  size_t place_of(int number) const {
    return static_cast<size_t>(std::find(layers.begin(), layers.end(), number) - layers.begin());
  }
  /// Dimensions of a head of that side; of a key where a row has both.
  int head_dim() const { return layer.stored_dim(sides_in(side).front()); }
  /// Heads of all its layers, and dimensions of each.
  size_t all_heads() const { return layers.size() * static_cast<size_t>(heads()); }
  size_t dims() const { return static_cast<size_t>(head_dim()); }
  size_t width() const { return layers.size() * (side == Side::both ? layer.width() : layer.width(side)); }
  /// Number of values of a row for one of its sides.
  size_t side_width(Side held) const { return layers.size() * layer.width(held); }
  /// The column of a row at which its side `held` begins; that of its layer number `place`.
  size_t column_of(Side held, size_t place = 0) const {
    return (side == Side::both && held == Side::value ? side_width(Side::key) : 0) +
           place * layer.width(held);
  }
  /// The columns of a row that hold a side of its layer number `place`.
  template <class View>
  auto columns(const View& rows, Side held, size_t place) const {
    return rows.columns(column_of(held, place), layer.width(held));
  }
};

/// The same layers on another side.
inline GroupShape of_side(GroupShape shape, Side side) {
  shape.side = side;
  return shape;
}

/// Consecutive layers of the usual shape.
inline GroupShape usual_group(int first_layer, int layers, int heads, int head_dim, Side side = Side::key) {
  return {consecutive(first_layer, layers), usual_layer(heads, head_dim), side};
}

}  // namespace kvcodec
