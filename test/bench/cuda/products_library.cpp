// The vendor's matrix product, as a yardstick.
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
  check(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS, "cuBLAS does not start");
  check(cublasSetStream(handle, stream.handle()) == CUBLAS_STATUS_SUCCESS, "cuBLAS takes no stream");
  const float one = 1, zero = 0;
  const auto size = static_cast<int>(n);
  const Times times = time([&](size_t) {
    check(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, size, size, size, &one, a.data(), CUDA_R_16F, size,
                       b.data(), CUDA_R_16F, size, &zero, c.data(), CUDA_R_16F, size, CUBLAS_COMPUTE_32F,
                       CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS,
          "cuBLAS failed");
  });
  stream.synchronize();
  cublasDestroy(handle);
  return 2 * std::pow(static_cast<double>(n), 3) / times.median();
}

}  // namespace kvcodec::bench
