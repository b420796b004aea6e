// The result of launchers and of the runtime: 0, or the number of an error (cudaError_t where there is CUDA).
//
// Launchers are declared in .cuh files and defined in .cu files: device pointers, sizes and a stream in, the
// status out. They include neither fmt nor lib/core/error.hpp, which nvcc cannot read as C++20; checks and
// messages are in the .cpp wrappers.
#pragma once

#include <cstddef>

// CUDA's own names for streams and events, so that no CUDA header is needed to pass them on.
struct CUstream_st;
struct CUevent_st;

namespace kvcodec::cuda {

using Status = int;
using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;

/// Properties of a device that launchers need.
struct Limits {
  int multiprocessors = 0;
  size_t shared_bytes = 0;  ///< that one block can have at most
  size_t l2_bytes = 0;
};

/// Writes `value` to *out on the device: fails if this build has no code for the device it runs on.
[[nodiscard]] Status run_probe(int* out, int value, StreamHandle stream);

}  // namespace kvcodec::cuda
