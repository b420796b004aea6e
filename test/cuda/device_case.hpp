// The beginning of all cases of the device twins.
#pragma once

#include <string>

#include "cuda/runtime/device.hpp"
#include "cuda/runtime/device_work.hpp"
#include "lib/core/rng.hpp"
#include "lib/core/view.hpp"
#include "test/test.hpp"

/// Skips a case that needs a device if there is none with enough capability; over the emulation there always is.
#define NEEDS_DEVICE() \
  if (const std::string why = ::kvcodec::test::why_no_device(); !why.empty()) SKIP(why)

namespace kvcodec::test {

/// The reason why this machine cannot use a device; std::nullopt if it can.
inline std::string why_no_device() {
  const auto devices = cuda::devices();
  return devices.empty() ? "no CUDA device here" : cuda::lacks(devices[0]);
}

/// The device, alone, with an engine that reports to nobody.
inline const cuda::DeviceWork& device() {
  static Engine engine;
  static const cuda::DeviceWork work(engine);
  return work;
}

/// Normal values.
inline Matrix<float> random_rows(Rng& rng, size_t n, size_t cols) {
  Matrix<float> rows(n, cols);
  for (size_t i = 0; i < n; ++i)
    for (float& value : rows.row(i)) value = static_cast<float>(rng.normal());
  return rows;
}

}  // namespace kvcodec::test
