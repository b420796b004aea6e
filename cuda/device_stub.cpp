#include "cuda/device.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cuda {

bool built_with_cuda() { return false; }

std::vector<DeviceInfo> devices() { return {}; }

DeviceInfo require_device(int) {
  throw no_device(
      "no CUDA device: this kvcodec was built without CUDA; use --device cpu, or build with "
      "-DKVCODEC_CUDA=ON");
}

}  // namespace kvcodec::cuda
