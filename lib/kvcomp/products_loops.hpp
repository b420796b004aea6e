// The loops over rows and vectors, for products_avx2.cpp and products_avx512.cpp. The file that includes it
// has defined row_times<count>, in an unnamed namespace within its own.
#pragma once

namespace kvcodec::products_kernels::KVCODEC_PRODUCTS_LEVEL {
namespace {

template <size_t count>
void rows_times(const uint8_t* symbols, size_t stride, size_t rows, size_t n, const float* vectors,
                size_t vector_stride, float* out, size_t out_stride) {
  for (size_t r = 0; r < rows; ++r)
    row_times<count>(symbols + r * stride, n, vectors, vector_stride, out + r, out_stride);
}

}  // namespace

void multiply(const uint8_t* symbols, size_t stride, size_t rows, size_t n, const float* vectors,
              size_t vector_stride, size_t count, float* out, size_t out_stride) {
  while (count > 0) {
    const size_t now = count >= 4 ? 4 : count;
    if (now == 4)
      rows_times<4>(symbols, stride, rows, n, vectors, vector_stride, out, out_stride);
    else if (now == 3)
      rows_times<3>(symbols, stride, rows, n, vectors, vector_stride, out, out_stride);
    else if (now == 2)
      rows_times<2>(symbols, stride, rows, n, vectors, vector_stride, out, out_stride);
    else
      rows_times<1>(symbols, stride, rows, n, vectors, vector_stride, out, out_stride);
    vectors += now * vector_stride;
    out += now * out_stride;
    count -= now;
  }
}

}  // namespace kvcodec::products_kernels::KVCODEC_PRODUCTS_LEVEL
