#include "cuda/engine.hpp"

#include "cuda/runtime/device_work.hpp"

namespace kvcodec::cuda {

/// Each twin (an implementation of an interface of lib) defines one at the end of its source file: it adds to the
/// device's engine what makes the twin. The device outlives what the engine makes.
using AddTwin = void(const DeviceWork& device);
AddTwin add_attention, add_blocks, add_cluster_choice, add_kmeans, add_prefill, add_pursuit,
    add_reconstruction, add_residual, add_rvq_training, add_signs, add_synthesis, add_training;

namespace {

constexpr AddTwin* kTwins[] = {add_attention,    add_blocks,  add_cluster_choice, add_kmeans,
                               add_prefill,      add_pursuit, add_reconstruction, add_residual,
                               add_rvq_training, add_signs,   add_synthesis,      add_training};

class CudaEngine final : public Engine {
 public:
  explicit CudaEngine(Note note) : Engine(std::move(note)) {
    for (AddTwin* add_twin : kTwins) add_twin(device_);
  }

 private:
  DeviceWork device_{*this};
};

}  // namespace

std::unique_ptr<Engine> make_engine(Engine::Note note) {
  return std::make_unique<CudaEngine>(std::move(note));
}

}  // namespace kvcodec::cuda
