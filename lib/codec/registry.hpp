// The list of codecs, and pairs of them. How to add one: CONTRIBUTING.md, "A codec".
#pragma once

#include <span>
#include <string_view>

#include "lib/codec/codec.hpp"

namespace kvcodec {

/// All codecs, in the order that help shows them.
std::span<const CodecEntry> codecs();

/// The codec of that name, or the pair of codecs (pair_codec.hpp); nullptr: there is none.
const CodecEntry* known_codec(std::string_view name);

/// The same. Throws Error(usage) listing the names there are.
const CodecEntry& find_codec(std::string_view name);

}  // namespace kvcodec
