// What launchers and the runtime answer: 0, or the number of an error (cudaError_t where there is CUDA).
#pragma once

// CUDA's own names for what a stream and an event are, so that no CUDA header is needed to pass them on.
struct CUstream_st;
struct CUevent_st;

namespace kvcodec::cuda {

using Status = int;
using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;

}  // namespace kvcodec::cuda
