#include "cli/inputs/held_tokens.hpp"

#include <algorithm>

namespace kvcodec::cli {

uint64_t HeldTokens::first_original(int layer) const {
  const uint64_t before = match_.original - kv_.documents().offsets[match_.original_document],
                 held = kv_.documents().left_out_of(layer, match_.original_document);
  return held - std::min(held, before);
}

void HeldTokens::check(int layer, uint64_t from, uint64_t visible, uint64_t position) const {
  const bool sees = from < visible, is_coded = std::min(from, visible - 1) >= first(layer);
  if (is_coded && (!sees || from >= first_original(layer))) return;
  const std::string& file = is_coded ? kv_.name() : codes_.name();
  throw bad_input(
      "{}: in layer {} document '{}' lacks its first {}, as windows of later tokens allow, and the query at position {} "
      "sees {}; dump queries of the last token alone (--queries last:1), or the cache with --window-layers keep, or choose "
      "other --layers",
      file, layer, codes_.info().documents.names[match_.other_document],
      counted(is_coded ? first_original(layer) : first(layer), "token"), position,
      sees ? fmt::format("tokens from {} on", from) : "none of the others");
}

void HeldTokens::read(Side side, int layer, uint64_t first, MatrixView<float> out) const {
  const uint64_t held = first_original(layer);
  const auto lacking = static_cast<size_t>(std::min<uint64_t>(held - std::min(held, first), out.rows()));
  for (size_t i = 0; i < lacking; ++i) std::ranges::fill(out.row(i), 0.0f);
  if (const size_t rest = out.rows() - lacking; rest > 0)
    kv_.read(side, layer, match_.original + first + lacking, out.rows(lacking, rest));
}

}  // namespace kvcodec::cli
