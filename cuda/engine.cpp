#include "cuda/engine.hpp"

#include "cuda/engine_parts.hpp"

namespace kvcodec::cuda {
namespace {

class CudaEngine final : public Engine {
 public:
  using Engine::Engine;

  std::unique_ptr<ResidualEngine> residual(const Codebooks& books) override {
    return residual_engine(device_, books);
  }

  const kvcomp::BlockEngine* blocks() override { return blocks_.get(); }
  const SignEngine* signs() override { return signs_.get(); }
  std::unique_ptr<ReconstructionEngine> reconstruction(const Dictionary& dictionary) override {
    return reconstruction_engine(device_, dictionary);
  }
  std::unique_ptr<PursuitEngine> pursuit(const Dictionary& dictionary) override {
    return pursuit_engine(device_, dictionary);
  }
  std::unique_ptr<TrainingEngine> training(const TrainOptions& options, size_t width) override {
    return training_engine(device_, options, width);
  }
  std::unique_ptr<SynthesisEngine> synthesis(const SynthesisTask& task) override {
    return synthesis_engine(device_, task);
  }
  const AttentionEngine* attention() override { return attention_.get(); }
  KmeansFunction kmeans() override { return kmeans_function(device_); }
  TokenChooser choice_by_clusters(const kvcodec::ClusterIndex& index, uint64_t tokens) override {
    return cluster_chooser(device_, index, tokens);
  }
  std::unique_ptr<RvqTrainEngine> rvq_training() override { return rvq_train_engine(device_); }
  std::shared_ptr<PrefillEngine> prefill(const LlamaWeights& weights) override {
    return prefill_engine(device_, weights);
  }

 private:
  DeviceWork device_{*this};
  std::unique_ptr<kvcomp::BlockEngine> blocks_ = block_engine(device_);
  std::unique_ptr<SignEngine> signs_ = sign_engine(device_);
  std::unique_ptr<AttentionEngine> attention_ = attention_engine(device_);
};

}  // namespace

std::unique_ptr<Engine> make_engine(Engine::Note note) {
  return std::make_unique<CudaEngine>(std::move(note));
}

}  // namespace kvcodec::cuda
