#include <exception>

#include "cuda/engine_parts.hpp"
#include "cuda/prefill/prefill.hpp"

namespace kvcodec::cuda {
namespace {

/// Steps that have the device while they run, as all work has.
class Steps final : public PrefillSteps {
 public:
  Steps(const DeviceWork& device, std::unique_ptr<PrefillSteps> steps)
      : device_(device), steps_(std::move(steps)) {}
  ~Steps() override {
    alone([&] { steps_.reset(); });
  }
  void embed() override {
    alone([&] { steps_->embed(); });
  }
  PastRows past_rows(size_t document) override { return steps_->past_rows(document); }
  void place_past(size_t document) override {
    alone([&] { steps_->place_past(document); });
  }
  void project(int layer, size_t first, size_t count) override {
    alone([&] { steps_->project(layer, first, count); });
  }
  void finish(int layer, size_t first, size_t count) override {
    alone([&] { steps_->finish(layer, first, count); });
  }
  LayerChunk projected(int layer, size_t first, size_t count) override {
    LayerChunk chunk;
    alone([&] { chunk = steps_->projected(layer, first, count); });
    return chunk;
  }
  MatrixView<const float> logits(size_t first, size_t count) override {
    MatrixView<const float> rows;
    alone([&] { rows = steps_->logits(first, count); });
    return rows;
  }
  MatrixView<const float> hidden() override {
    MatrixView<const float> rows;
    alone([&] { rows = steps_->hidden(); });
    return rows;
  }

 private:
  /// Nobody takes over in the middle of a prefill.
  template <class Body>
  void alone(const Body& body) const {
    std::exception_ptr refused;
    (void)device_.run(
        [&] {
          try {
            body();
          } catch (const Error&) {
            refused = std::current_exception();
          }
        },
        DeviceWork::Bits::rounded);
    if (refused) std::rethrow_exception(refused);
  }

  const DeviceWork& device_;
  std::unique_ptr<PrefillSteps> steps_;
};

class Prefill final : public PrefillEngine {
 public:
  Prefill(const DeviceWork& device, std::shared_ptr<PrefillEngine> on_device)
      : device_(device), on_device_(std::move(on_device)) {}

  /// Copies token rows of the embedding there, and back keys, values and queries, chunk by chunk; what a
  /// chunk computes stays there.
  std::unique_ptr<PrefillSteps> start(const PrefillPlan& plan) override {
    if (plan.options->attention) {
      device_.leave("prefill: attention to chosen tokens");
      return nullptr;
    }
    auto steps = device_.made("prefill", [&] { return on_device_->start(plan); });
    if (!steps || !*steps) return nullptr;
    count();
    return std::make_unique<Steps>(device_, std::move(*steps));
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
