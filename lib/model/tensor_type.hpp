// What the elements of weights are stored as: plain floats, or blocks that a run of values shares a scale in
// (the quantized types of GGUF files, whose names these are).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lib/core/names.hpp"

namespace kvcodec {

enum class TensorType : uint8_t {
  f32,
  f16,
  bf16,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs,
  mxfp4,
};
constexpr auto names_of(TensorType) {
  return std::to_array<std::string_view>({"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0",
                                          "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs",
                                          "mxfp4"});
}

/// Consecutive values are stored in blocks of so many, each of so many bytes.
struct BlockLayout {
  size_t values, bytes;
};

constexpr BlockLayout block_of(TensorType type) {
  constexpr BlockLayout kLayouts[] = {{1, 4},     {1, 2},   {1, 2},     {32, 18},   {32, 20},   {32, 22},
                                      {32, 24},   {32, 34}, {256, 84},  {256, 110}, {256, 144}, {256, 176},
                                      {256, 210}, {32, 18}, {256, 136}, {32, 17}};
  return kLayouts[static_cast<size_t>(type)];
}

/// Of the largest block.
inline constexpr size_t kMostBlockValues = 256;

constexpr bool is_quantized(TensorType type) { return type >= TensorType::q4_0; }

}  // namespace kvcodec
