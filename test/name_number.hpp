// A number of a name, whatever stands beside it in a list: seeds of the rows of a table, codecs of fuzz inputs.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvcodec::test {

/// FNV-1a.
constexpr uint32_t number_of(std::string_view name) {
  uint32_t number = 2166136261u;
  for (const char c : name) number = (number ^ static_cast<uint8_t>(c)) * 16777619u;
  return number;
}

}  // namespace kvcodec::test
