// Element types of stored arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvcodec {

enum class DType : uint8_t { u8, u16, u32, u64, i32, i64, f16, bf16, f32, f64 };

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

constexpr std::string_view name_of(DType type) {
  switch (type) {
    case DType::u8:
      return "u8";
    case DType::u16:
      return "u16";
    case DType::u32:
      return "u32";
    case DType::u64:
      return "u64";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
  }
  return "?";
}

/// The type of that name (as written by name_of); throws Error(usage) for any other.
DType dtype_from_name(std::string_view name);

}  // namespace kvcodec
