// What the twins answer in a build without CUDA.
#pragma once

#include <string_view>

#include "lib/core/error.hpp"

namespace kvcodec::cuda {

/// The error of a twin that is not in this build. Callers ask devices() or require_device() first, which say
/// so before any work; this is for those that do not.
inline Error built_without_cuda(std::string_view what) {
  return no_device("{} on a CUDA device: this kvcodec was built without CUDA", what);
}

}  // namespace kvcodec::cuda
