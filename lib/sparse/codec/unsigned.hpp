// Streams of unsigned numbers whose type depends on how many there can be. Inside lib/sparse/codec only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lib/codec/stream.hpp"

namespace kvcodec::sparse {

template <class To, class From>
std::vector<To> converted(std::span<const From> values) {
  std::vector<To> out(values.size());
  std::ranges::transform(values, out.begin(), [](From value) { return static_cast<To>(value); });
  return out;
}

template <class T>
std::vector<T> read_unsigned(const StreamReader& document, std::string_view stream, DType type,
                             uint64_t first, uint64_t count, uint64_t per_row) {
  const auto as = [&]<class Stored>(Stored) {
    auto stored = document.read<Stored>(stream, first, count, per_row);
    if constexpr (std::is_same_v<Stored, T>)
      return stored;
    else
      return converted<T>(std::span<const Stored>(stored));
  };
  if (type == DType::u8) return as(uint8_t{});
  if (type == DType::u32) return as(uint32_t{});
  return as(uint16_t{});
}

}  // namespace kvcodec::sparse
