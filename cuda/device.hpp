// Device discovery. The same header whether or not the build has CUDA; without it every question is answered
// "none" and every demand fails with a clear reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcodec::cuda {

struct DeviceInfo {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;   ///< compute capability
  uint64_t memory_bytes = 0;  ///< total device memory
  int multiprocessors = 0;
};

/// True if this program was built with CUDA.
bool built_with_cuda();

/// The devices there are; empty without CUDA, without a driver or without a device. Never throws.
std::vector<DeviceInfo> devices();

/// Makes device `index` the current one and returns what it is. Throws Error(no_device) saying why there is
/// none: built without CUDA, no driver, no device, or no device of that index.
DeviceInfo require_device(int index = 0);

}  // namespace kvcodec::cuda
