#include "cuda/runtime/device.hpp"

#include <cuda_runtime.h>

#include "cuda/runtime/status.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cuda {

/// Number of devices; the reason for none, if any, in `why`.
static int count_devices(std::string& why) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  why = status == cudaSuccess ? "the driver lists none" : cudaGetErrorString(status);
  (void)cudaGetLastError();  // the failure is handled; later calls must not see it again
  return 0;
}

static DeviceInfo describe(int index) {
  cudaDeviceProp properties{};
  const cudaError_t status = cudaGetDeviceProperties(&properties, index);
  if (status != cudaSuccess) throw failed("device {}: {}", index, cudaGetErrorString(status));
  return {index,
          properties.name,
          properties.major,
          properties.minor,
          properties.totalGlobalMem,
          properties.multiProcessorCount,
          properties.sharedMemPerBlockOptin};
}

std::vector<DeviceInfo> devices() {
  std::string why;
  std::vector<DeviceInfo> found;
  try {
    for (int i = 0, count = count_devices(why); i < count; ++i) found.push_back(describe(i));
  } catch (const Error&) {
    found.clear();  // a device that cannot be queried cannot be used either
  }
  return found;
}

DeviceInfo require_device(int index) {
  std::string why;
  const int count = count_devices(why);
  if (count == 0) throw no_device("no CUDA device: {}; use --device cpu", why);
  if (index < 0 || index >= count)
    throw no_device("no CUDA device {}: there are {}, counted from 0", index, count);
  cudaError_t status = cudaSetDevice(index);
  if (status != cudaSuccess) throw no_device("CUDA device {}: {}", index, cudaGetErrorString(status));
  DeviceInfo device = describe(index);
  if (const std::string missing = lacks(device); !missing.empty())
    throw no_device("CUDA device {} ({}): {}; use --device cpu", index, device.name, missing);
  // Runs one tiny kernel, so that a device for which this build holds no code is found here, not in the middle of the work.
  int* out = nullptr;
  int answer = 0;
  status = cudaMalloc(&out, sizeof(int));
  if (status == cudaSuccess) status = static_cast<cudaError_t>(run_probe(out, 42, nullptr));
  if (status == cudaSuccess) status = cudaMemcpy(&answer, out, sizeof(int), cudaMemcpyDeviceToHost);
  (void)cudaFree(out);
  if (status != cudaSuccess || answer != 42)
    throw no_device("CUDA device {} ({}, compute capability {}.{}): {}", device.index, device.name,
                    device.major, device.minor,
                    status == cudaSuccess ? "a test kernel gave a wrong answer" : cudaGetErrorString(status));
  return device;
}

}  // namespace kvcodec::cuda
