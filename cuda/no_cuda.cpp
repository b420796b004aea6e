// All of cuda/ in a build without CUDA: there is no device, and whoever demands one is told why.
#include "cuda/engine.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cuda {

static Error built_without_cuda() {
  return no_device(
      "no CUDA device: this kvcodec was built without CUDA; use --device cpu, or build with "
      "-DKVCODEC_CUDA=ON");
}

std::vector<DeviceInfo> devices() { return {}; }
DeviceInfo require_device(int) { throw built_without_cuda(); }
std::unique_ptr<Engine> make_engine(Engine::Note) { throw built_without_cuda(); }

}  // namespace kvcodec::cuda
