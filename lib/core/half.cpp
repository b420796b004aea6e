#include "lib/core/half.hpp"

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half_kernels.hpp"

namespace kvcodec {
namespace half_kernels::scalar {
namespace {

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

}  // namespace

const Table& table() {
  static constexpr Table kTable = {widen_bf16, widen_f16, narrow_bf16, narrow_f16};
  return kTable;
}

}  // namespace half_kernels::scalar

namespace {

const half_kernels::Table& kernels() {
  using namespace half_kernels;
  return pick(scalar::table, avx2::table, avx512::table)();
}

void check(DType type, size_t in, size_t out) {
  if (type != DType::f16 && type != DType::bf16)
    throw failed("{} is not a 16-bit float (f16, bf16)", name_of(type));
  if (in != out) throw failed("{} values do not fit an output of {}", in, out);
}

}  // namespace

void widen(DType type, std::span<const uint16_t> in, std::span<float> out) {
  check(type, in.size(), out.size());
  const auto convert = type == DType::bf16 ? kernels().widen_bf16 : kernels().widen_f16;
  convert(in.data(), out.data(), in.size());
}

void narrow(DType type, std::span<const float> in, std::span<uint16_t> out) {
  check(type, in.size(), out.size());
  const auto convert = type == DType::bf16 ? kernels().narrow_bf16 : kernels().narrow_f16;
  convert(in.data(), out.data(), in.size());
}

}  // namespace kvcodec
