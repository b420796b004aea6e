#include "lib/model/quantized.hpp"

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/model/quantized_kernels_body.hpp"

namespace kvcodec {
namespace quantized_kernels::scalar {

const Table& table() { return kTable; }

}  // namespace quantized_kernels::scalar

void dequantize(TensorType type, std::span<const std::byte> blocks, std::span<float> out) {
  const auto [values, bytes] = block_of(type);
  if (!is_quantized(type)) throw failed("{} has no blocks", name_of(type));
  if (out.size() % values != 0 || blocks.size() != out.size() / values * bytes)
    throw failed("{} bytes of {} do not fit {} values", blocks.size(), name_of(type), out.size());
  using namespace quantized_kernels;
  const Table& kernels = pick(scalar::table, avx2::table, avx512::table)();
  const size_t index = static_cast<size_t>(type) - static_cast<size_t>(TensorType::q4_0);
  kernels.dequantize[index](reinterpret_cast<const uint8_t*>(blocks.data()), out.data(), out.size() / values);
}

}  // namespace kvcodec
