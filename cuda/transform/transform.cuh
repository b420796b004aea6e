// Launchers of the kernels of transform.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"
#include "lib/transform/level_value.hpp"

namespace kvcodec::cuda {

/// Symbols of a class, the escape included: kLevelSymbols + 1 of lib/transform/levels.hpp.
inline constexpr unsigned kTransformSymbols = 32;
/// Bytes of an escape's value.
inline constexpr unsigned kTransformEscapeBytes = 3;

struct SymbolRange {
  uint32_t start, frequency;
};

/// What all components of a class share.
struct TransformClass {
  uint32_t first_slot;  ///< in TransformTables::slots
  uint32_t scale;       ///< there are 2^scale slots
  uint32_t shift;       ///< low bits of its levels
  float shrink[kShrunkLevels];
  SymbolRange ranges[kTransformSymbols];
};

struct TransformTables {
  const TransformClass* classes;
  const uint8_t* slots;            ///< the symbol of each slot
  const uint8_t* component_class;  ///< [components]
  const float* units;              ///< [components]: step times gain
  const uint32_t* low_before;      ///< [components]: low bits of a token in the components before
  const float* rows;               ///< [components][width]
  const float* mean;               ///< [width]
  uint32_t components, width;
};

/// Blocks of `tokens` tokens, and room for what is made of them.
struct TransformBlocks {
  const uint8_t* payload;
  const uint64_t* begins;  ///< [count + 1]: where blocks begin in payload
  uint32_t count, tokens;
  uint32_t low_bytes;        ///< at the end of each block
  uint8_t* symbols;          ///< [count][components][tokens]
  uint32_t* escapes_before;  ///< [count][components]: escapes of the block in the components before
  uint32_t* raw_begins;      ///< [count]: where escapes' values begin in the block
  float* values;             ///< [components][count * tokens]
  uint32_t* damaged;         ///< 1 where a block is none that an encoder writes
};

/// Symbols of all blocks: a warp each.
[[nodiscard]] Status run_transform_symbols(const TransformTables& tables, const TransformBlocks& blocks,
                                           StreamHandle stream);
/// What their levels stand for.
[[nodiscard]] Status run_transform_values(const TransformTables& tables, const TransformBlocks& blocks,
                                          StreamHandle stream);
/// out[t * width + c] = mean[c] + the sum over components i of values[i][t] * rows[i][c], in rising order, each product
/// fused with the sum, values of 0 left out.
[[nodiscard]] Status run_transform_vectors(const TransformTables& tables, const float* values,
                                           uint64_t tokens, float* out, StreamHandle stream);

}  // namespace kvcodec::cuda
