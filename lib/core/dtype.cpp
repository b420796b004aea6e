#include "lib/core/dtype.hpp"

#include "lib/core/error.hpp"

namespace kvcodec {

DType dtype_from_name(std::string_view name) {
  for (auto type : {DType::u8, DType::u16, DType::u32, DType::u64, DType::i32, DType::i64, DType::f16,
                    DType::bf16, DType::f32, DType::f64})
    if (name == name_of(type)) return type;
  throw usage_error("'{}' is no element type (u8, u16, u32, u64, i32, i64, f16, bf16, f32, f64)", name);
}

}  // namespace kvcodec
