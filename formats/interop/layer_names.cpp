#include "formats/interop/layer_names.hpp"

#include <charconv>

namespace kvcodec::interop {
namespace {

/// Keys and values of layer N are called: `before`, N, and one of the ends.
struct Pattern {
  std::string_view before, ends[2];
};
constexpr Pattern kPatterns[] = {{"layers.", {".keys", ".values"}},
                                 {"past_key_values.", {".key", ".value"}},
                                 {"past_key_values.", {".0", ".1"}},
                                 {"key_cache.", {"", "-"}},
                                 {"value_cache.", {"-", ""}}};

}  // namespace

std::optional<LayerName> layer_name(std::string_view name) {
  for (const Pattern& pattern : kPatterns) {
    if (!name.starts_with(pattern.before)) continue;
    const std::string_view rest = name.substr(pattern.before.size());
    int layer = -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    if (error != std::errc{} || layer < 0 || layer >= kMostLayers) continue;
    const std::string_view behind = rest.substr(static_cast<size_t>(end - rest.data()));
    for (size_t side = 0; side < 2; ++side)
      if (behind == pattern.ends[side]) return LayerName{layer, side};
  }
  return std::nullopt;
}

}  // namespace kvcodec::interop
