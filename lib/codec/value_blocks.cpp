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

}  // namespace kvcodec
