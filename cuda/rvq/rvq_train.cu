#include "cuda/rvq/rvq_train.cuh"
#include "cuda/rvq/rvq_train_kernels.cuh"

namespace kvcodec::cuda {

Status run_outer_sums(const double* rows, const double* weights, const double* others, uint32_t count,
                      uint32_t n, uint32_t m, double* out, StreamHandle stream) {
  return launch(outer_sums, dim3((m + kWarp - 1) / kWarp, (n + kOuterRows - 1) / kOuterRows),
                kOuterRows * kWarp, 0, stream, rows, weights, others, count, n, m, out);
}

}  // namespace kvcodec::cuda
