// Launchers are declared in .cuh files and defined in .cu files: device pointers, sizes and a stream in, the
// status out. They include neither fmt nor lib/core/error.hpp, which nvcc cannot read as C++20; checks and
// messages are in the .cpp wrappers.
#pragma once

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

/// Writes `value` to *out on the device: fails if this build has no code for the device it runs on.
[[nodiscard]] Status run_probe(int* out, int value, StreamHandle stream);

}  // namespace kvcodec::cuda
