// Enums whose values have names, which the command line takes, files store and messages show. An enum gets
// them by a function of its own namespace, in the order of its values, which count from 0:
//
//   enum class Metric : uint8_t { cosine, l2 };
//   constexpr auto names_of(Metric) { return std::to_array<std::string_view>({"cosine", "l2"}); }
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

namespace kvcodec {

template <class E>
concept NamedEnum = std::is_enum_v<E> && requires {
  names_of(E{});
};

/// The names of all values of E, in their order.
template <NamedEnum E>
inline constexpr auto kNamesOf = names_of(E{});

template <NamedEnum E>
constexpr std::string_view name_of(E value) {
  return kNamesOf<E>.at(static_cast<size_t>(value));
}

/// The value of that name, or none.
template <NamedEnum E>
constexpr std::optional<E> value_named(std::string_view name) {
  for (size_t i = 0; i < kNamesOf<E>.size(); ++i)
    if (kNamesOf<E>[i] == name) return static_cast<E>(i);
  return std::nullopt;
}

}  // namespace kvcodec

/// Messages say the name.
template <kvcodec::NamedEnum E>
struct fmt::formatter<E> : fmt::formatter<std::string_view> {
  auto format(E value, fmt::format_context& context) const {
    return fmt::formatter<std::string_view>::format(kvcodec::name_of(value), context);
  }
};
