// The bulk conversions of half.hpp once per instruction set: n elements from `in` to `out`, which need no
// alignment and do not overlap. Inside lib/core only; raw pointers because wide compile units share no inline
// code (see cpu.hpp).
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kvcodec::half_kernels {

namespace scalar {
void widen_bf16(const uint16_t* in, float* out, size_t n);
void widen_f16(const uint16_t* in, float* out, size_t n);
void narrow_bf16(const float* in, uint16_t* out, size_t n);
void narrow_f16(const float* in, uint16_t* out, size_t n);
}  // namespace scalar

namespace avx2 {
void widen_bf16(const uint16_t* in, float* out, size_t n);
void widen_f16(const uint16_t* in, float* out, size_t n);
void narrow_bf16(const float* in, uint16_t* out, size_t n);
void narrow_f16(const float* in, uint16_t* out, size_t n);
}  // namespace avx2

namespace avx512 {
void widen_bf16(const uint16_t* in, float* out, size_t n);
void widen_f16(const uint16_t* in, float* out, size_t n);
void narrow_bf16(const float* in, uint16_t* out, size_t n);
void narrow_f16(const float* in, uint16_t* out, size_t n);
}  // namespace avx512

}  // namespace kvcodec::half_kernels
