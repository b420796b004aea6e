// Launchers of the kernels of rvq_train_kernels.cuh. All pointers are to device memory.
#pragma once

#include <cstdint>

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

/// out[i * m + j] = the sum over e < count of (rows[e * n + i] * weights[e]) * others[e * m + j], in rising
/// order.
[[nodiscard]] Status run_outer_sums(const double* rows, const double* weights, const double* others,
                                    uint32_t count, uint32_t n, uint32_t m, double* out, StreamHandle stream);

}  // namespace kvcodec::cuda
