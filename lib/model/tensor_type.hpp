// Storage types of weights: plain floats, or blocks of values that share a scale (the quantized types of
// GGUF files, whose names these are; and e4m3, the FP8 of checkpoints: a scale in f32, and 32 values).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
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
  e4m3,
};
constexpr auto names_of(TensorType) {
  return std::to_array<std::string_view>({"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0",
                                          "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4",
                                          "e4m3"});
}

/// The size of a block: its number of values, and its bytes.
struct BlockLayout {
  size_t values, bytes;
};

constexpr BlockLayout block_of(TensorType type) {
  constexpr BlockLayout kLayouts[] = {{1, 4},     {1, 2},   {1, 2},     {32, 18},   {32, 20},   {32, 22},
                                      {32, 24},   {32, 34}, {256, 84},  {256, 110}, {256, 144}, {256, 176},
                                      {256, 210}, {32, 18}, {256, 136}, {32, 17},   {32, 36}};
  return kLayouts[static_cast<size_t>(type)];
}

/// Number of values of the largest block.
inline constexpr size_t kMaxBlockValues = 256;

constexpr bool is_quantized(TensorType type) { return type >= TensorType::q4_0; }

/// Quantizes whole blocks to q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl: values.size() is a multiple of the block's values, and
/// `blocks` has exactly the size of that many blocks. Scales are chosen as in ggml's reference (github.com/ggml-org/ggml,
/// src/ggml-quants.c), so that values dequantized from such a block, in f32, become the same block again: the largest
/// magnitude or both ends of the range fall on the grid. Throws Error(failed) for other types.
void quantize(TensorType type, std::span<const float> values, std::span<std::byte> blocks);

/// The types that quantize() knows, those of fewer bits first.
inline constexpr TensorType kQuantizers[] = {TensorType::q4_0, TensorType::iq4_nl, TensorType::q4_1,
                                             TensorType::q5_0, TensorType::q5_1,   TensorType::q8_0};

/// quantize(). Returns whether the blocks give all values back bit for bit.
bool quantize_exactly(TensorType type, std::span<const float> values, std::span<std::byte> blocks);

/// Dequantizes whole blocks of a quantized type: out.size() is a multiple of the block's values, and `blocks` holds
/// exactly that many blocks. Every value is the type's formula in float arithmetic, with each product and sum rounded,
/// and the same at every level of wide instructions, except that a NaN may be another NaN.
void dequantize(TensorType type, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace kvcodec
