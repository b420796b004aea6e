// CUDA implementation of decoding in lib/transform: from coded blocks of levels to vectors. Results have the bits of
// LevelCoder::decode, LevelTables::reconstruct and Synthesis::apply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/runtime/runtime.hpp"
#include "cuda/transform/transform.cuh"
#include "lib/core/view.hpp"
#include "lib/transform/levels.hpp"

namespace kvcodec::cuda {

/// The tables of levels and the synthesis rows of one task, in device memory.
class VectorSynthesizer {
 public:
  /// Throws Error(usage) for vectors of more than 64 times 65,535 values, Error(failed) for shapes that do not fit
  /// together and without device memory.
  explicit VectorSynthesizer(const SynthesisTask& task);

  /// As SynthesisFunction. Throws Error(bad_input) for damaged blocks.
  void decode(std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes, size_t tokens,
              MatrixView<float> out) const;

  /// The same tables for the launchers of transform.cuh.
  TransformTables tables() const { return tables_; }

 private:
  size_t width_;
  Stream stream_;
  DeviceBuffer<TransformClass> classes_;
  DeviceBuffer<uint8_t> guides_, component_class_;
  DeviceBuffer<float> units_, rows_, mean_;
  DeviceBuffer<uint32_t> low_before_;
  TransformTables tables_{};
  uint64_t low_bits_ = 0;  // of a token
  bool decodable_ = true;  // all components have models with frequencies
};

}  // namespace kvcodec::cuda
