// Element types of stored arrays.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lib/core/names.hpp"

namespace kvcodec {

enum class DType : uint8_t { u8, u16, u32, u64, i32, i64, f16, bf16, f32, f64 };
constexpr auto names_of(DType) {
  return std::to_array<std::string_view>(
      {"u8", "u16", "u32", "u64", "i32", "i64", "f16", "bf16", "f32", "f64"});
}

/// Bytes per element.
constexpr size_t size_of(DType type) {
  constexpr size_t kSizes[] = {1, 2, 4, 8, 4, 8, 2, 2, 4, 8};
  return kSizes[static_cast<size_t>(type)];
}

}  // namespace kvcodec
