// What codecs work on: one side of some consecutive layers, or both sides of them together.
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
/// The one side that a codec has which codes them jointly.
inline constexpr Side kJointly[] = {Side::both};

/// Those of a cache's sides that this one holds.
constexpr std::span<const Side> sides_in(Side side) {
  return side == Side::both ? std::span<const Side>(kSides)
                            : std::span<const Side>(kSides).subspan(side == Side::value, 1);
}

/// A side of `layers` consecutive layers. One row is one token: its [layers][heads][head_dim] floats; with both sides
/// its keys and behind them its values, each in that order.
struct GroupShape {
  int first_layer = 0;
  int layers = 1;
  int heads = 0;
  int head_dim = 0;
  Side side = Side::key;

  size_t width() const { return sides_in(side).size() * side_width(); }
  /// Of one of the cache's sides.
  size_t side_width() const {
    return static_cast<size_t>(layers) * static_cast<size_t>(heads) * static_cast<size_t>(head_dim);
  }
  /// Where a side that it holds begins in a row.
  size_t column_of(Side held) const { return side == Side::both && held == Side::value ? side_width() : 0; }
};

/// The same layers of that side.
constexpr GroupShape of_side(GroupShape shape, Side side) {
  shape.side = side;
  return shape;
}

}  // namespace kvcodec
