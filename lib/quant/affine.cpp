#include "lib/quant/affine.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lib/core/half.hpp"

namespace kvcodec {
namespace {

struct AffineGrid {
  float scale = 0, bias = 0;

  float value(uint32_t code) const { return scale * static_cast<float>(code) + bias; }
  uint32_t code(float value, uint32_t highest) const {
    const float steps = std::nearbyint((value - bias) / scale);
    return steps > 0 ? static_cast<uint32_t>(std::min(steps, static_cast<float>(highest))) : 0;
  }
  bool has(std::span<const float> values, uint32_t highest) const {
    return std::ranges::all_of(values, [&](float x) {
      return std::bit_cast<uint32_t>(value(code(x, highest))) == std::bit_cast<uint32_t>(x);
    });
  }
  AffineGrid rounded(DType type) const { return {round_to(type, scale), round_to(type, bias)}; }
};

/// The grid that codes are found on, and the grid as it is stored.
struct AffineFit {
  AffineGrid coding, stored;
  bool exact = false;
};

AffineFit fit_affine(std::span<const float> values, uint32_t highest, DType stored) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const float least = *low, largest = *high;
  const auto step_of = [&](bool from_least, uint32_t steps) {
    constexpr float kLeastStep = 1e-7f;  // of MLX
    const float size = std::max((largest - least) / static_cast<float>(steps), kLeastStep);
    return from_least ? size : -size;
  };
  // From an end of the range through 0, in steps of nearly that size.
  const auto grid_of = [&](bool from_least, float step) {
    const float end = from_least ? least : largest, to_zero = std::nearbyint(end / step);
    return to_zero != 0 ? AffineGrid{end / to_zero, end} : AffineGrid{step, 0};
  };
  const bool from_least = std::fabs(least) > std::fabs(largest);
  // A rounded scale can put the other end further from 0. Of two levels, as one large value makes them in groups of 2 bits, nine in ten
  // are 2 steps apart where 3 would do too. The bias as it was before it was rounded may have given another scale: the range shows it.
  for (const bool end : {from_least, !from_least})
    for (const uint32_t steps : {highest - 1, highest}) {
      const float step = step_of(end, steps);
      const AffineGrid grid = grid_of(end, step);
      for (const float scale : {grid.scale, step})
        if (const AffineGrid tried = AffineGrid{scale, grid.bias}.rounded(stored); tried.has(values, highest))
          return {.coding = tried, .stored = tried, .exact = true};
    }
  const AffineGrid grid = grid_of(from_least, step_of(from_least, highest));
  return {.coding = grid, .stored = grid.rounded(stored)};
}

void put_float(DType type, float value, std::byte* to) {
  const uint16_t half = type == DType::bf16 ? bf16_from_float(value) : f16_from_float(value);
  if (type == DType::f32) return void(std::memcpy(to, &value, sizeof value));
  std::memcpy(to, &half, sizeof half);
}

float float_at(DType type, const std::byte* from) {
  float value = 0;
  uint16_t half = 0;
  if (type == DType::f32) return std::memcpy(&value, from, sizeof value), value;
  std::memcpy(&half, from, sizeof half);
  return type == DType::bf16 ? bf16_to_float(half) : f16_to_float(half);
}

}  // namespace

bool quantize_affine(const AffineGroups& groups, std::span<const float> values, std::span<std::byte> blocks) {
  const uint32_t highest = (uint32_t{1} << groups.bits) - 1;
  const size_t size = size_of(groups.stored);
  std::ranges::fill(blocks, std::byte{0});
  bool exact = true;
  for (std::byte* out = blocks.data(); !values.empty(); values = values.subspan(groups.values)) {
    const std::span<const float> group = values.first(groups.values);
    const AffineFit fit = fit_affine(group, highest, groups.stored);
    exact = exact && fit.exact;
    put_float(groups.stored, fit.stored.scale, out);
    put_float(groups.stored, fit.stored.bias, out + size);
    out += 2 * size;
    for (size_t i = 0; i < group.size(); ++i) {
      const size_t bit = i * groups.bits;
      const uint32_t code = fit.coding.code(group[i], highest) << bit % 8;
      out[bit / 8] |= static_cast<std::byte>(code);
      if (code > 255) out[bit / 8 + 1] |= static_cast<std::byte>(code >> 8);
    }
    out += groups.code_bytes();
  }
  return exact;
}

void dequantize_affine(const AffineGroups& groups, std::span<const std::byte> blocks, std::span<float> out) {
  const uint32_t highest = (uint32_t{1} << groups.bits) - 1;
  const size_t size = size_of(groups.stored);
  for (const std::byte* in = blocks.data(); !out.empty(); out = out.subspan(groups.values)) {
    const AffineGrid grid{float_at(groups.stored, in), float_at(groups.stored, in + size)};
    in += 2 * size;
    for (size_t i = 0; i < groups.values; ++i) {
      const size_t bit = i * groups.bits;
      uint32_t code = static_cast<uint32_t>(in[bit / 8]) >> bit % 8;
      if (bit % 8 + groups.bits > 8) code |= static_cast<uint32_t>(in[bit / 8 + 1]) << (8 - bit % 8);
      out[i] = grid.value(code & highest);
    }
    in += groups.code_bytes();
  }
}

}  // namespace kvcodec
