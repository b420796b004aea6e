#include "lib/codec/registry.hpp"

#include <algorithm>

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

const CodecEntry& find_codec(std::string_view name) {
  std::vector<std::string_view> names;
  for (const CodecEntry& entry : codecs()) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  throw usage_error("'{}' is not a codec; choose one of: {}", name, fmt::join(names, ", "));
}

}  // namespace kvcodec
