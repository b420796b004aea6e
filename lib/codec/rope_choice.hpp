// Whether codecs and books are of keys as the cache has them, or of keys turned back (rope_codec.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lib/core/names.hpp"
#include "lib/core/record.hpp"

namespace kvcodec {

enum class RopeChoice : uint8_t {
  keep,  ///< keys as the cache has them, turned
  undo,  ///< keys turned back
};
constexpr auto names_of(RopeChoice) { return std::to_array<std::string_view>({"keep", "undo"}); }

/// The parameter of codecs and books that says it; absent = keep.
inline constexpr std::string_view kRopeParameter = "rope";

/// Reads the choice from a record. Throws Error(bad_input) for what is none.
inline RopeChoice rope_in(const Record& parameters) {
  return parameters.find(kRopeParameter) ? parameters.get_enum<RopeChoice>(kRopeParameter) : RopeChoice::keep;
}

/// Puts the choice into a record, except `keep`, which records do not name.
inline void set_rope(Record& parameters, RopeChoice rope) {
  if (rope != RopeChoice::keep) parameters.set(kRopeParameter, std::string(name_of(rope)));
}

}  // namespace kvcodec
