#include "lib/kvcomp/products.hpp"

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/kvcomp/products_kernels.hpp"

namespace kvcodec {

void products_kernels::scalar::multiply(Factors f) {
  for (size_t r = 0; r < f.rows; ++r)
    for (size_t g = 0; g < f.count; ++g) {
      float sum = 0;
      for (size_t i = 0; i < f.n; ++i) {
        const auto signed_symbol =
            static_cast<int8_t>(static_cast<uint8_t>(f.symbols[r * f.stride + i] - 127));
        sum += static_cast<float>(signed_symbol) * f.vectors[g * f.vector_stride + i];
      }
      f.out[g * f.out_stride + r] += sum;
    }
}

void multiply_symbols(MatrixView<const uint8_t> runs, MatrixView<const float> vectors,
                      MatrixView<float> out) {
  if (vectors.cols() != runs.cols() || out.rows() != vectors.rows() || out.cols() != runs.rows())
    throw failed("products of {} x {} symbols with {} vectors of {} into {} x {}", runs.rows(), runs.cols(),
                 vectors.rows(), vectors.cols(), out.rows(), out.cols());
  if (out.rows() == 0 || out.cols() == 0) return;
  using namespace products_kernels;
  pick(scalar::multiply, avx2::multiply,
       avx512::multiply)({runs.data(), runs.stride(), runs.rows(), runs.cols(), vectors.data(),
                          vectors.stride(), vectors.rows(), out.data(), out.stride()});
}

}  // namespace kvcodec
