// What cases of the device twins begin with.
#pragma once

#include "cuda/device.hpp"
#include "lib/core/rng.hpp"
#include "lib/core/view.hpp"
#include "test/test.hpp"

/// Leaves a case that needs a device where there is none; over the emulation there always is.
#define NEEDS_DEVICE() \
  if (::kvcodec::cuda::devices().empty()) SKIP("no CUDA device here")

namespace kvcodec::test {

/// Normal values.
inline Matrix<float> random_rows(Rng& rng, size_t n, size_t cols) {
  Matrix<float> rows(n, cols);
  for (size_t i = 0; i < n; ++i)
    for (float& value : rows.row(i)) value = static_cast<float>(rng.normal());
  return rows;
}

}  // namespace kvcodec::test
