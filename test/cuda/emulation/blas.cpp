// cuda/blas.hpp over the emulation: the products are those of lib/linalg, of widened operands.
#include "cuda/blas.hpp"

#include "lib/core/half_bits.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/blas.hpp"
#include "test/cuda/emulation/emulation.hpp"

namespace kvcodec::cuda {
namespace {

Matrix<float> widened(const uint16_t* values, size_t rows, size_t cols) {
  Matrix<float> wide(rows, cols);
  for (size_t i = 0; i < wide.size(); ++i) wide.data()[i] = bf16_to_float(values[i]);
  return wide;
}

}  // namespace

Blas::Blas(const Stream& stream) : stream_(stream.handle()) {}
Blas::~Blas() = default;

void Blas::products(const uint16_t* x, const uint16_t* weight, size_t n, size_t outputs, size_t inputs,
                    bool add, float* out) const {
  emulation::check_device_range(x, n * inputs * sizeof(*x));
  emulation::check_device_range(weight, outputs * inputs * sizeof(*weight));
  emulation::check_device_range(out, n * outputs * sizeof(*out));
  emulation::enqueue(reinterpret_cast<emulation::Stream*>(stream_), [=] {
    gemm(1, widened(x, n, inputs), Transpose::no, widened(weight, outputs, inputs), Transpose::yes,
         add ? 1.0f : 0.0f, MatrixView<float>(out, n, outputs));
  });
}

}  // namespace kvcodec::cuda
