#include "cli/inputs/interop_options.hpp"

#include <algorithm>
#include <charconv>

#include "cli/frame/common.hpp"
#include "formats/interop/foreign.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const interop::ForeignFormat& format : interop::foreign_formats()) names.emplace_back(format.name);
  return names;
}

std::optional<std::array<size_t, 2>> parse_rotated(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::array<size_t, 2> sizes{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (size_t i = 0; i < 2; ++i) {
    const auto [stop, error] = std::from_chars(at, end, sizes[i]);
    if (error != std::errc{} || (i == 0 ? stop == end || *stop != ',' : stop != end))
      throw usage_error("--rotated is '{}'; it must be two sizes of blocks, as 128,64", text);
    at = stop + 1;
  }
  return sizes;
}

void check_taken(const Command& command, const std::vector<OptionField>& options, std::string_view format,
                 const std::vector<std::string_view>& taken) {
  for (const OptionField& option : options) {
    if (!command.given(option.name) || std::find(taken.begin(), taken.end(), option.name) != taken.end())
      continue;
    if (taken.empty())
      throw usage_error("--{} is for other formats; {} files say all that is needed", option.name, format);
    throw usage_error("--{} is for other formats; {} takes --{}", option.name, format,
                      fmt::join(taken, ", --"));
  }
}

std::vector<int> parse_layers(const std::string& option, const std::string& text) {
  std::vector<int> layers;
  if (text.empty()) return layers;
  constexpr uint64_t kMostLayers = 4096;
  const auto ranges = number_ranges(text);
  if (!ranges || ranges->back().end > kMostLayers)
    throw usage_error("{} is '{}'; it must be numbers and ranges of layers, as 0-4,6", option, text);
  for (const TokenRange& range : *ranges)
    for (uint64_t layer = range.first; layer < range.end; ++layer) layers.push_back(static_cast<int>(layer));
  return layers;
}

}  // namespace kvcodec::cli
