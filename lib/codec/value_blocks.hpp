// The quantized blocks that the values of an f32 cache may come from: those of llama.cpp (lib/model/tensor_type.hpp) and the groups of
// mlx-lm (lib/quant/affine.hpp). Consecutive values of a row make a block.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lib/model/tensor_type.hpp"
#include "lib/quant/affine.hpp"

namespace kvcodec {

class ValueBlocks {
 public:
  ValueBlocks() = default;                       ///< none
  ValueBlocks(TensorType type) : kind_(type) {}  // not explicit: kQuantizers are such blocks
  ValueBlocks(const AffineGroups& groups) : kind_(groups) {}

  /// All kinds that values can come from, in the order in which they are to be tried.
  static std::vector<ValueBlocks> all();
  /// As name() calls them; std::nullopt for another text.
  static std::optional<ValueBlocks> named(std::string_view name);

  bool any() const { return kind_.index() > 0; }
  const TensorType* type() const { return std::get_if<TensorType>(&kind_); }
  const AffineGroups* groups() const { return std::get_if<AffineGroups>(&kind_); }
  /// "none", "q4_0", or "mlx-4-64-bf16" with bits, values of a group, and type of scales and biases.
  std::string name() const {
    if (const AffineGroups* affine = groups())
      return fmt::format("mlx-{}-{}-{}", affine->bits, affine->values, name_of(affine->stored));
    return type() ? std::string(name_of(*type())) : "none";
  }

  // The rest is for blocks of a kind.
  BlockLayout layout() const {
    if (const AffineGroups* affine = groups()) return {affine->values, affine->block_bytes()};
    return block_of(std::get<TensorType>(kind_));
  }
  /// Whole blocks of these values. Returns whether they give all values back bit for bit.
  bool quantize_exactly(std::span<const float> values, std::span<std::byte> blocks) const {
    if (const AffineGroups* affine = groups()) return quantize_affine(*affine, values, blocks);
    return kvcodec::quantize_exactly(std::get<TensorType>(kind_), values, blocks);
  }
  void dequantize(std::span<const std::byte> blocks, std::span<float> out) const {
    if (const AffineGroups* affine = groups()) return dequantize_affine(*affine, blocks, out);
    kvcodec::dequantize(std::get<TensorType>(kind_), blocks, out);
  }

 private:
  std::variant<std::monostate, TensorType, AffineGroups> kind_;
};

}  // namespace kvcodec
