#include "lib/codec/registry.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "lib/codec/pair_codec.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

// One function per lib/codec/<name>_codec.cpp.
CodecEntry none_codec();
CodecEntry sparse_codec();
CodecEntry rvq_codec();
CodecEntry kvcomp_codec();
CodecEntry selfindex_codec();
CodecEntry kivi_codec();
CodecEntry q4_codec();
CodecEntry fp8_codec();
CodecEntry lossless_codec();
CodecEntry transform_codec();

std::span<const CodecEntry> codecs() {
  static const CodecEntry entries[] = {
      none_codec(), sparse_codec(), rvq_codec(), kvcomp_codec(),   selfindex_codec(),
      kivi_codec(), q4_codec(),     fp8_codec(), lossless_codec(), transform_codec(),
  };
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
