// Launchers are declared in .cuh files and defined in .cu files: device pointers, sizes and a stream in, the
// error out. They include neither fmt nor lib/core/error.hpp, which nvcc cannot read as C++20; checks and
// messages are in the .cpp wrappers.
#pragma once

#include <cuda_runtime.h>

namespace kvcodec::cuda {

/// Writes `value` to *out on the device: fails if this build has no code for the device it runs on.
cudaError_t run_probe(int* out, int value, cudaStream_t stream);

}  // namespace kvcodec::cuda
