#include "lib/kvcomp/products.hpp"

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/kvcomp/products_kernels.hpp"

namespace kvcodec {

namespace products_kernels::scalar {

void multiply(const uint8_t* symbols, size_t stride, size_t rows, size_t n, const float* vectors,
              size_t vector_stride, size_t count, float* out, size_t out_stride) {
  for (size_t r = 0; r < rows; ++r)
    for (size_t g = 0; g < count; ++g) {
      float sum = 0;
      for (size_t i = 0; i < n; ++i) {
        const auto signed_symbol = static_cast<int8_t>(static_cast<uint8_t>(symbols[r * stride + i] - 127));
        sum += static_cast<float>(signed_symbol) * vectors[g * vector_stride + i];
      }
      out[g * out_stride + r] += sum;
    }
}

}  // namespace products_kernels::scalar

void multiply_symbols(MatrixView<const uint8_t> runs, MatrixView<const float> vectors,
                      MatrixView<float> out) {
  if (vectors.cols() != runs.cols() || out.rows() != vectors.rows() || out.cols() != runs.rows())
    throw failed("products of {} x {} symbols with {} vectors of {} into {} x {}", runs.rows(), runs.cols(),
                 vectors.rows(), vectors.cols(), out.rows(), out.cols());
  if (out.rows() == 0 || out.cols() == 0) return;
  using namespace products_kernels;
  const auto kernel = pick(scalar::multiply, avx2::multiply, avx512::multiply);
  kernel(runs.data(), runs.stride(), runs.rows(), runs.cols(), vectors.data(), vectors.stride(),
         vectors.rows(), out.data(), out.stride());
}

}  // namespace kvcodec
