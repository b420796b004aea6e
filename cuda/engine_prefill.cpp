#include "cuda/engine_parts.hpp"
#include "cuda/prefill.hpp"

namespace kvcodec::cuda {
namespace {

class Prefill final : public PrefillEngine {
 public:
  Prefill(const DeviceWork& device, std::shared_ptr<PrefillEngine> on_device)
      : device_(device), on_device_(std::move(on_device)) {}

  /// Copies token rows of the embedding there, and back keys, values and queries, chunk by chunk; what a
  /// chunk computes stays there.
  std::unique_ptr<PrefillSteps> start(const PrefillPlan& plan) override {
    auto steps = device_.made("prefill", [&] { return on_device_->start(plan); });
    if (!steps) return nullptr;
    count();
    return std::move(*steps);
  }

  bool logits(MatrixView<const float> hidden, MatrixView<float> out) override {
    if (!device_.made("logits", [&] { return on_device_->logits(hidden, out); }).value_or(false))
      return false;
    count();
    return true;
  }

 private:
  void count() const {
    (void)device_.run([] {}, DeviceWork::Bits::rounded);
  }

  const DeviceWork& device_;
  std::shared_ptr<PrefillEngine> on_device_;
};

}  // namespace

std::shared_ptr<PrefillEngine> prefill_engine(const DeviceWork& device, const LlamaWeights& weights) {
  auto on_device = device.made("prefill", [&] { return make_prefill_engine(weights); });
  if (!on_device) return nullptr;
  return std::make_shared<Prefill>(device, std::move(*on_device));
}

}  // namespace kvcodec::cuda
