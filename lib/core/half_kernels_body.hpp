// The conversions of half_kernels.hpp in vectors (see lib/core/cpu.hpp).
#pragma once

#include "lib/core/half_kernels.hpp"
#include "lib/core/vectors.hpp"

namespace kvcodec::half_kernels {
namespace {

using namespace vectors;

struct Bf16 {
  static KVCODEC_INLINE Floats widen(Halves value) { return widen_bf16(value); }
  static KVCODEC_INLINE Halves narrow(Floats value) {
    const Ints quiet = bits_of(value) | 0x400000;  // a NaN stays one
    const Ints is_nan = bits_of(magnitude(value)) > 0x7f800000;
    return low_halves((Words)(is_nan ? quiet : (Ints)bits_near_bf16(value)) >> 16);
  }
};

struct F16 {
  static KVCODEC_INLINE Floats widen(Halves value) { return widen_f16(value); }
  static KVCODEC_INLINE Halves narrow(Floats value) { return narrow_f16(value); }
};

template <class Half>
void widen(const uint16_t* in, float* out, size_t n) {
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(Half::widen(load(in + i)), out + i);
  if (i < n) store_first(Half::widen(load_first(in + i, n - i)), out + i, n - i);
}

template <class Half>
void narrow(const float* in, uint16_t* out, size_t n) {
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(Half::narrow(load(in + i)), out + i);
  if (i < n) store_first(Half::narrow(load_first(in + i, n - i)), out + i, n - i);
}

constexpr Table kTable = {widen<Bf16>, widen<F16>, narrow<Bf16>, narrow<F16>};

}  // namespace
}  // namespace kvcodec::half_kernels
