#include "lib/core/half.hpp"

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half_kernels.hpp"

namespace kvcodec {
namespace half_kernels::scalar {

void widen_bf16(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = bf16_to_float(in[i]);
}

void widen_f16(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = f16_to_float(in[i]);
}

void narrow_bf16(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = bf16_from_float(in[i]);
}

void narrow_f16(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = f16_from_float(in[i]);
}

}  // namespace half_kernels::scalar

namespace {

void check(DType type, size_t in, size_t out) {
  if (type != DType::f16 && type != DType::bf16)
    throw failed("{} is no 16-bit float (f16, bf16)", name_of(type));
  if (in != out) throw failed("{} values do not fit an output of {}", in, out);
}

}  // namespace

void widen(DType type, std::span<const uint16_t> in, std::span<float> out) {
  check(type, in.size(), out.size());
  const bool brain = type == DType::bf16;
  namespace k = half_kernels;
  switch (simd_level()) {
    case SimdLevel::avx512:
      return (brain ? k::avx512::widen_bf16 : k::avx512::widen_f16)(in.data(), out.data(), in.size());
    case SimdLevel::avx2:
      return (brain ? k::avx2::widen_bf16 : k::avx2::widen_f16)(in.data(), out.data(), in.size());
    case SimdLevel::scalar:
      return (brain ? k::scalar::widen_bf16 : k::scalar::widen_f16)(in.data(), out.data(), in.size());
  }
}

void narrow(DType type, std::span<const float> in, std::span<uint16_t> out) {
  check(type, in.size(), out.size());
  const bool brain = type == DType::bf16;
  namespace k = half_kernels;
  switch (simd_level()) {
    case SimdLevel::avx512:
      return (brain ? k::avx512::narrow_bf16 : k::avx512::narrow_f16)(in.data(), out.data(), in.size());
    case SimdLevel::avx2:
      return (brain ? k::avx2::narrow_bf16 : k::avx2::narrow_f16)(in.data(), out.data(), in.size());
    case SimdLevel::scalar:
      return (brain ? k::scalar::narrow_bf16 : k::scalar::narrow_f16)(in.data(), out.data(), in.size());
  }
}

}  // namespace kvcodec
