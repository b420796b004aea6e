// Factories for cuda/engine.cpp, one for each interface of lib that has a twin (a CUDA implementation). Each
// is defined in the folder of its area, at the end of the twin's source file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/runtime/device_work.hpp"
#include "lib/engine/engine.hpp"

namespace kvcodec::cuda {

std::unique_ptr<AttentionEngine> attention_engine(const DeviceWork& device);
std::unique_ptr<kvcomp::BlockEngine> block_engine(const DeviceWork& device);
TokenChooser cluster_chooser(const DeviceWork& device, const kvcodec::ClusterIndex& index, uint64_t tokens);
KmeansFunction kmeans_function(const DeviceWork& device);
std::unique_ptr<PursuitEngine> pursuit_engine(const DeviceWork& device, const Dictionary& dictionary);
std::shared_ptr<PrefillEngine> prefill_engine(const DeviceWork& device, const LlamaWeights& weights);
std::unique_ptr<ReconstructionEngine> reconstruction_engine(const DeviceWork& device,
                                                            const Dictionary& dictionary);
std::unique_ptr<ResidualEngine> residual_engine(const DeviceWork& device, const Codebooks& books);
std::unique_ptr<RvqTrainEngine> rvq_train_engine(const DeviceWork& device);
std::unique_ptr<SignEngine> sign_engine(const DeviceWork& device);
std::unique_ptr<SynthesisEngine> synthesis_engine(const DeviceWork& device, const SynthesisTask& task);
std::unique_ptr<TrainingEngine> training_engine(const DeviceWork& device, const TrainOptions& options,
                                                size_t width);

}  // namespace kvcodec::cuda
