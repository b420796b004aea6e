// The vendor's matrix product, as a baseline.
#include <cublas_v2.h>

#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/bench/cuda/device_bench.hpp"

namespace kvcodec::bench {

double library_product_rate(const cuda::Stream& stream, size_t n,
                            const std::function<Times(const std::function<void(size_t)>&)>& time) {
  Rng rng(1);
  std::vector<uint16_t> values(n * n);  // random: products of zeros run faster
  for (auto& value : values) value = f16_from_float(static_cast<float>(rng.uniform(-1, 1)));
  cuda::DeviceBuffer<uint16_t> a(values, stream), b(values, stream), c(n * n);
  cublasHandle_t handle = nullptr;
  verify(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS, "cuBLAS does not start");
  verify(cublasSetStream(handle, stream.handle()) == CUBLAS_STATUS_SUCCESS, "cuBLAS takes no stream");
  const float one = 1, zero = 0;
  const auto size = static_cast<int>(n);
  const Times times = time([&](size_t) {
    verify(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, size, size, size, &one, a.data(), CUDA_R_16F, size,
                        b.data(), CUDA_R_16F, size, &zero, c.data(), CUDA_R_16F, size, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS,
           "cuBLAS failed");
  });
  stream.synchronize();
  cublasDestroy(handle);
  return 2 * std::pow(static_cast<double>(n), 3) / times.median();
}

LibraryProducts::LibraryProducts(const cuda::Stream& stream) {
  cublasHandle_t handle = nullptr;
  verify(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS, "cuBLAS does not start");
  handle_ = handle;
  verify(cublasSetStream(handle, stream.handle()) == CUBLAS_STATUS_SUCCESS, "cuBLAS takes no stream");
}

LibraryProducts::~LibraryProducts() { cublasDestroy(static_cast<cublasHandle_t>(handle_)); }

namespace {

/// For each head, columns (rows, per_head) = op(cache) columns (inner, per_head); a head's cache is (dims, tokens) for a library
/// with column-major matrices.
void multiply_heads(void* handle, const HeadProducts& shape, cublasOperation_t op, size_t rows, size_t inner,
                    const uint16_t* cache, const uint16_t* vectors, float* out) {
  const float one = 1, zero = 0;
  const auto number = [](size_t value) { return static_cast<int>(value); };
  const auto stride = [](size_t value) { return static_cast<long long>(value); };
  verify(cublasGemmStridedBatchedEx(
             static_cast<cublasHandle_t>(handle), op, CUBLAS_OP_N, number(rows), number(shape.per_head),
             number(inner), &one, cache, CUDA_R_16BF, number(shape.heads * shape.dims), stride(shape.dims),
             vectors, CUDA_R_16BF, number(inner), stride(inner * shape.per_head), &zero, out, CUDA_R_32F,
             number(rows), stride(rows * shape.per_head), number(shape.heads), CUBLAS_COMPUTE_32F,
             CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS,
         "cuBLAS failed");
}

}  // namespace

void LibraryProducts::multiply_keys(const HeadProducts& shape, const uint16_t* keys, const uint16_t* queries,
                                    float* out) const {
  multiply_heads(handle_, shape, CUBLAS_OP_T, shape.tokens, shape.dims, keys, queries, out);
}

void LibraryProducts::multiply_values(const HeadProducts& shape, const uint16_t* values,
                                      const uint16_t* weights, float* out) const {
  multiply_heads(handle_, shape, CUBLAS_OP_N, shape.dims, shape.tokens, values, weights, out);
}

}  // namespace kvcodec::bench
