// What decodes levels and rebuilds vectors in place of LevelCoder::decode, LevelTables::reconstruct and
// Synthesis::apply: a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/core/view.hpp"
#include "lib/transform/levels.hpp"

namespace kvcodec {

/// The components that a part of a transform has at one step.
struct SynthesisTask {
  const LevelTables& tables;
  std::span<const uint8_t> classes;  ///< of each component, none of them dead
  std::span<const float> gains;      ///< likewise
  float step = 0;
  MatrixView<const float> rows;  ///< (components, width): the way back of each
  std::span<const float> mean;   ///< (width)
};

/// For one task. Threads may share it.
class SynthesisEngine {
 public:
  /// For Engine::make. The result needs nothing of the task afterwards.
  using Factory = std::unique_ptr<SynthesisEngine>(const SynthesisTask&);
  virtual ~SynthesisEngine() = default;
  /// The vectors of consecutive blocks of `tokens` tokens each, the first one at payload[0], block i of block_bytes[i]
  /// bytes: out (block_bytes.size() * tokens, width), with the bits that lib gives them. False: the
  /// engine did not do it, for damaged blocks too, and `out` is undefined; the caller does it.
  virtual bool decode(std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes, size_t tokens,
                      MatrixView<float> out) const = 0;
};

}  // namespace kvcodec
