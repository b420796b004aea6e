// CUDA implementation of decoding in lib/transform: from coded blocks of levels to vectors. Results have the bits of
// LevelCoder::decode, LevelTables::reconstruct and Synthesis::apply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/core/view.hpp"
#include "lib/transform/levels.hpp"

namespace kvcodec::cuda {

struct TransformTables;

/// The tables of levels and the synthesis rows of one task, in device memory.
class VectorSynthesizer {
 public:
  /// Throws Error(usage) for vectors of more than 64 times 65,535 values, Error(failed) for shapes that do not fit
  /// together and without device memory.
  explicit VectorSynthesizer(const SynthesisTask& task);
  ~VectorSynthesizer();
  VectorSynthesizer(VectorSynthesizer&&) noexcept;
  VectorSynthesizer& operator=(VectorSynthesizer&&) noexcept;

  /// As SynthesisEngine::decode. Throws Error(bad_input) for damaged blocks.
  void decode(std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes, size_t tokens,
              MatrixView<float> out) const;

  /// The same tables for the launchers of transform.cuh.
  TransformTables tables() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec::cuda
