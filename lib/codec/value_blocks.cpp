#include "lib/codec/value_blocks.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace kvcodec {

std::vector<ValueBlocks> ValueBlocks::all() {
  std::vector<ValueBlocks> all(std::begin(kQuantizers), std::end(kQuantizers));
  for (const DType stored :
       {DType::bf16, DType::f16, DType::f32})  // narrow ones first: f32 holds their scales too
    for (const size_t values : {64, 32, 128})
      for (const unsigned bits :
           {2u, 3u, 4u, 5u, 6u, 8u})  // as kQuantizers: what comes from few bits fits more
        all.emplace_back(AffineGroups{.bits = bits, .values = values, .stored = stored});
  return all;
}

std::optional<ValueBlocks> ValueBlocks::named(std::string_view name) {
  if (name == ValueBlocks().name()) return ValueBlocks();
  const std::vector<ValueBlocks> known = all();
  const auto found = std::ranges::find(known, name, &ValueBlocks::name);
  return found == known.end() ? std::nullopt : std::optional(*found);
}

std::string ValueBlocks::name() const {
  if (const AffineGroups* affine = groups())
    return fmt::format("mlx-{}-{}-{}", affine->bits, affine->values, name_of(affine->stored));
  return type() ? std::string(name_of(*type())) : "none";
}

BlockLayout ValueBlocks::layout() const {
  if (const AffineGroups* affine = groups()) return {affine->values, affine->block_bytes()};
  return block_of(std::get<TensorType>(kind_));
}

bool ValueBlocks::quantize_exactly(std::span<const float> values, std::span<std::byte> blocks) const {
  if (const AffineGroups* affine = groups()) return quantize_affine(*affine, values, blocks);
  return kvcodec::quantize_exactly(std::get<TensorType>(kind_), values, blocks);
}

void ValueBlocks::dequantize(std::span<const std::byte> blocks, std::span<float> out) const {
  if (const AffineGroups* affine = groups()) return dequantize_affine(*affine, blocks, out);
  kvcodec::dequantize(std::get<TensorType>(kind_), blocks, out);
}

}  // namespace kvcodec
