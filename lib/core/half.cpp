#include "lib/core/half.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/kernels.hpp"

namespace kvcodec {

namespace core_kernels::scalar {
template <float (*convert)(uint16_t)>
static void widen(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = convert(in[i]);
}

template <uint16_t (*convert)(float)>
static void narrow(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = convert(in[i]);
}

static WordSums sums(const unsigned char* bytes, size_t n) {
  WordSums result{0, 0};
  for (size_t i = 0; i < n; ++i) {
    result.plain += static_cast<uint64_t>(bytes[2 * i] | bytes[2 * i + 1] << 8);
    result.weighted += result.plain;
  }
  return result;
}

const Table& table() {
  static constexpr Table kTable = {widen<bf16_to_float>, widen<f16_to_float>, narrow<bf16_from_float>,
                                   narrow<f16_from_float>, sums};
  return kTable;
}

}  // namespace core_kernels::scalar

static const core_kernels::Table& kernels() {
  using namespace core_kernels;
  return pick(scalar::table, avx2::table, avx512::table)();
}

static void check(DType type, size_t in, size_t out) {
  if (type != DType::f16 && type != DType::bf16)
    throw failed("{} is not a 16-bit float (f16, bf16)", name_of(type));
  if (in != out) throw failed("{} values do not fit an output of {}", in, out);
}

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

std::vector<float> clipped(DType type, std::span<const float> values) {
  const float largest = type == DType::f16    ? f16_to_float(0x7bff)
                        : type == DType::bf16 ? bf16_to_float(0x7f7f)
                                              : std::numeric_limits<float>::max();
  std::vector<float> result(values.begin(), values.end());
  for (float& value : result)
    if (std::isfinite(value)) value = std::clamp(value, -largest, largest);
  return result;
}

}  // namespace kvcodec
