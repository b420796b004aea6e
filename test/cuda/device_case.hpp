// What cases of the device twins begin with.
#pragma once

#include "cuda/device.hpp"
#include "test/test.hpp"

/// Leaves a case that needs a device where there is none; over the emulation there always is.
#define NEEDS_DEVICE() \
  if (::kvcodec::cuda::devices().empty()) SKIP("no CUDA device here")
