// cuda/prefill/blas.hpp over the emulation: every sum in one go on the matrix units, as the library may do
// it.
#include "cuda/prefill/blas.hpp"

#include "lib/core/half_bits.hpp"
#include "test/cuda/emulation/emulation.hpp"
#include "test/cuda/emulation/matrix_units.hpp"

namespace kvcodec::cuda {
namespace {

float dot(const uint16_t* a, const uint16_t* b, size_t count) {
  constexpr size_t kBlock = emulation::kProductsAtOnce;
  float sum = 0;
  for (size_t first = 0; first < count; first += kBlock) {
    double products[kBlock] = {};
    for (size_t i = first; i < std::min(count, first + kBlock); ++i)
      products[i - first] = double{bf16_to_float(a[i])} * double{bf16_to_float(b[i])};
    sum = emulation::add_products(sum, products);
  }
  return sum;
}

}  // namespace

Blas::Blas(const Stream& stream) : stream_(stream.handle()) {}
Blas::~Blas() = default;

void Blas::stretch_products(const Product& product, size_t stride) const {
  const size_t n = product.n, outputs = product.outputs;
  if (n == 0 || outputs == 0) return;
  emulation::check_device_range(product.x, ((n - 1) * stride + product.inputs) * sizeof(uint16_t));
  emulation::check_device_range(product.weight, ((outputs - 1) * stride + product.inputs) * sizeof(uint16_t));
  emulation::check_device_range(product.out, n * outputs * sizeof(float));
  emulation::enqueue(reinterpret_cast<emulation::Stream*>(stream_), [=] {
    for (size_t i = 0; i < product.n; ++i)
      for (size_t j = 0; j < product.outputs; ++j) {
        const float sum = dot(product.x + i * stride, product.weight + j * stride, product.inputs);
        float& to = product.out[i * product.outputs + j];
        to = product.add ? to + sum : sum;
      }
  });
}

}  // namespace kvcodec::cuda
