// Checks of numbers from outside. Sizes are multiplied and added with overflow checks before anything is allocated. Most
// numbers come from files; for those from options, ErrorKind::usage tells that the caller is at fault.
#pragma once

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

#include "lib/core/error.hpp"

namespace kvcodec {

/// Converts a number of layers, heads or channels, or a size from an option; it is not negative.
constexpr size_t as_size(int64_t count) { return static_cast<size_t>(count); }

/// a * b; throws Error(kind) on overflow.
inline uint64_t checked_mul(uint64_t a, uint64_t b, ErrorKind kind = ErrorKind::bad_input) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    throw Error(kind, fmt::format("size {} x {} does not fit 64 bits", a, b));
  return product;
}

/// a + b; throws Error(kind) on overflow.
inline uint64_t checked_add(uint64_t a, uint64_t b, ErrorKind kind = ErrorKind::bad_input) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum))
    throw Error(kind, fmt::format("size {} + {} does not fit 64 bits", a, b));
  return sum;
}

/// The product of all factors; throws Error(bad_input) on overflow. An empty list gives 1.
template <class Range>
uint64_t checked_product(const Range& factors) {
  uint64_t product = 1;
  for (auto factor : factors) product = checked_mul(product, static_cast<uint64_t>(factor));
  return product;
}

/// Parses the whole text as a number; std::nullopt if the text is no number, has more behind it or does not fit the type.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

/// Position of the first infinity or NaN, if any. Keys and values must have none: it would spoil every sum that it enters.
inline std::optional<size_t> find_non_finite(std::span<const float> values) {
  // On the bit pattern, so that no compiler option about floats can optimise it away.
  const auto non_finite = [](float value) {
    return (std::bit_cast<uint32_t>(value) & 0x7f800000u) == 0x7f800000u;
  };
  constexpr size_t kBlock = 1024;  // long enough for the compiler's vector loop, short enough to stop early
  for (size_t first = 0; first < values.size(); first += kBlock) {
    const auto block = values.subspan(first, std::min(kBlock, values.size() - first));
    uint32_t any = 0;
    for (const float value : block) any |= static_cast<uint32_t>(non_finite(value));
    if (any) return first + static_cast<size_t>(std::ranges::find_if(block, non_finite) - block.begin());
  }
  return std::nullopt;
}

}  // namespace kvcodec
