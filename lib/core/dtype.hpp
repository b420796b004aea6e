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
  switch (type) {
    case DType::u8:
      return 1;
    case DType::u16:
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::u32:
    case DType::i32:
    case DType::f32:
      return 4;
    case DType::u64:
    case DType::i64:
    case DType::f64:
      return 8;
  }
  return 0;
}

/// The type of that name; throws Error(usage) where there is none.
DType dtype_from_name(std::string_view name);

}  // namespace kvcodec
