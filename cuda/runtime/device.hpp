// The list of devices. Without CUDA (no_cuda.cpp) it is empty, and demanding a device throws the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace kvcodec::cuda {

struct DeviceInfo {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;   ///< compute capability
  uint64_t memory_bytes = 0;  ///< total device memory
  int multiprocessors = 0;
  size_t shared_bytes = 0;  ///< shared memory that one block of threads can have
};

/// Requirements of kernels: asynchronous copies, products of bf16, and the shared memory of the first
/// devices that had these. Some smaller devices of later generations have less.
inline constexpr int kMinMajor = 8;
inline constexpr size_t kMinSharedBytes = 163 * 1024;

/// The requirement that a device does not meet, as a sentence; empty if it meets all.
inline std::string lacks(const DeviceInfo& device) {
  if (device.major < kMinMajor)
    return fmt::format("its compute capability is {}.{}; {}.0 is the least that runs kvcodec", device.major,
                       device.minor, kMinMajor);
  if (device.shared_bytes < kMinSharedBytes)
    return fmt::format("a block of threads has {} KiB of shared memory there; kvcodec needs {} KiB",
                       device.shared_bytes / 1024, kMinSharedBytes / 1024);
  return "";
}

/// The devices there are; empty without CUDA, without a driver or without a device. Never throws.
std::vector<DeviceInfo> devices();

/// Makes device `index` the current one and returns its properties. Throws Error(no_device) with the reason if
/// there is none: built without CUDA, no driver, no device, no device of that index, or one that is too small.
DeviceInfo require_device(int index = 0);

}  // namespace kvcodec::cuda
