// dequantize (quantized.hpp) once per instruction set (see lib/core/cpu.hpp). Inside lib/model only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::quantized_kernels {

/// One instruction set's functions, in the order of TensorType from q4_0 on: so many whole blocks, at any
/// address.
struct Table {
  void (*dequantize[13])(const uint8_t* blocks, float* out, size_t count);
};

KVCODEC_VARIANTS(const Table& table();)

}  // namespace kvcodec::quantized_kernels
