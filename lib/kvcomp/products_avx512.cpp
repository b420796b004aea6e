#include "lib/kvcomp/products_kernels_body.hpp"

namespace kvcodec::products_kernels {

void avx512::multiply(const uint8_t* symbols, size_t stride, size_t rows, size_t n, const float* vectors,
                      size_t vector_stride, size_t count, float* out, size_t out_stride) {
  wide_multiply(symbols, stride, rows, n, vectors, vector_stride, count, out, out_stride);
}

}  // namespace kvcodec::products_kernels
