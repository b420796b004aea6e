// Numbers out of texts that come from outside.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace kvcodec {

/// The number that all of a text is; nothing where it is none, has more behind it or does not fit the type.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

}  // namespace kvcodec
