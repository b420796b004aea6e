// What codecs work on: one side of some consecutive layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lib/core/names.hpp"

namespace kvcodec {

enum class Side : uint8_t { key, value };
inline constexpr Side kSides[] = {Side::key, Side::value};
constexpr auto names_of(Side) { return std::to_array<std::string_view>({"key", "value"}); }

/// One side of `layers` consecutive layers. One row is one token: its [layers][heads][head_dim] floats.
struct GroupShape {
  int first_layer = 0;
  int layers = 1;
  int heads = 0;
  int head_dim = 0;
  Side side = Side::key;

  size_t width() const {
    return static_cast<size_t>(layers) * static_cast<size_t>(heads) * static_cast<size_t>(head_dim);
  }
};

/// The other side of the same layers, or the same one.
constexpr GroupShape of_side(GroupShape shape, Side side) {
  shape.side = side;
  return shape;
}

}  // namespace kvcodec
