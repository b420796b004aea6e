#include "lib/codec/registry.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "lib/codec/pair_codec.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

/// The entries of all codecs, from the names of their sources (cmake/lists.cmake).
std::vector<CodecEntry> all_codec_entries();

std::span<const CodecEntry> codecs() {
  static const std::vector<CodecEntry> entries = [] {
    auto all = all_codec_entries();
    std::ranges::sort(all, {}, [](const CodecEntry& entry) { return std::tie(entry.place, entry.name); });
    return all;
  }();
  return entries;
}

namespace {

const CodecEntry* single_codec(std::string_view name) {
  const auto all = codecs();
  const auto place = std::ranges::find(all, name, &CodecEntry::name);
  return place == all.end() ? nullptr : &*place;
}

}  // namespace

const CodecEntry* known_codec(std::string_view name) {
  const size_t mark = name.find(kPairMark);
  if (mark == std::string_view::npos) return single_codec(name);
  const CodecEntry *keys = single_codec(name.substr(0, mark)), *values = single_codec(name.substr(mark + 1));
  if (!keys || !values) return nullptr;
  static std::mutex mutex;
  static std::map<std::string, CodecEntry, std::less<>> pairs;  // made when they are first asked for
  const std::lock_guard lock(mutex);
  auto pair = pairs.find(name);
  if (pair == pairs.end()) pair = pairs.emplace(name, pair_of(*keys, *values)).first;
  return &pair->second;
}

const CodecEntry& find_codec(std::string_view name) {
  if (const CodecEntry* entry = known_codec(name)) return *entry;
  std::vector<std::string_view> names;
  for (const CodecEntry& entry : codecs()) names.push_back(entry.name);
  throw usage_error("'{}' is not a codec; choose one of: {}", name, fmt::join(names, ", "));
}

}  // namespace kvcodec
