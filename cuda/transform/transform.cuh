// Launchers of the kernels of transform.cu. All pointers are to device memory.
#pragma once

#include <cstdint>

#include "cuda/runtime/status.hpp"
#include "lib/transform/level_value.hpp"

namespace kvcodec::cuda {

/// Symbols of a class, the escape included: kLevelSymbols + 1 of lib/transform/levels.hpp.
inline constexpr unsigned kTransformSymbols = 32;
/// Bytes of an escape's value.
inline constexpr unsigned kTransformEscapeBytes = 3;

/// Classes of components: kLevelClasses of lib/transform/levels.hpp.
inline constexpr unsigned kTransformClasses = 40;
/// A class' guide has the symbol of the first slot of each of 2^12 equal parts of its slots, or of each slot if there
/// are fewer; with kTransformSeveral added if that is not the symbol of the whole part.
inline constexpr unsigned kTransformGuideBits = 12;
inline constexpr unsigned kTransformSeveral = kTransformSymbols;

/// Data that all components of a class share.
struct TransformClass {
  uint32_t first_guide;  ///< in TransformTables::guides
  uint32_t scale;        ///< there are 2^scale slots
  uint32_t shift;        ///< low bits of its levels
  float shrink[kShrunkLevels];
  uint32_t ranges[kTransformSymbols];  ///< slots of a symbol: their begin, and from bit 16 on their number
};

struct TransformTables {
  const TransformClass* classes;
  const uint8_t* guides;           ///< of classes that components have; aligned to 16 bytes
  const uint8_t* component_class;  ///< [components]
  const float* units;              ///< [components]: step times gain
  const uint32_t* low_before;      ///< [components]: low bits of a token in the components before
  const float* rows;               ///< [components][width]
  const float* mean;               ///< [width]
  uint32_t components, width;      ///< width: a multiple of 4, zeros behind the vector
  uint32_t guide_bytes;            ///< a multiple of 16
};

/// Blocks of `tokens` tokens, and room for their results.
struct TransformBlocks {
  const uint8_t* payload;
  const uint64_t* begins;  ///< [count + 1]: begins of blocks in payload
  uint32_t count, tokens;
  uint32_t low_bytes;        ///< at the end of each block
  uint8_t* symbols;          ///< [count][components][tokens]
  uint32_t* escapes_before;  ///< [count][components]: escapes of the block in the components before
  uint32_t* raw_begins;      ///< [count]: begin of escapes' values in the block
  float* values;             ///< [components][value_stride]: (count * tokens) each
  uint64_t value_stride;     ///< a multiple of 4
  uint32_t* damaged;         ///< 1 if a block is none that an encoder writes
};

/// Symbols of all blocks: a warp each.
[[nodiscard]] Status run_transform_symbols(const TransformTables& tables, const TransformBlocks& blocks,
                                           StreamHandle stream);
/// Values that the levels of these symbols stand for.
[[nodiscard]] Status run_transform_values(const TransformTables& tables, const TransformBlocks& blocks,
                                          StreamHandle stream);
/// Values by component.
struct TokenValues {
  const float* values;  ///< [components][stride]
  uint64_t tokens, stride;
};
/// out[t * width + c] = mean[c] + the sum over components i of values[i][t] * rows[i][c], in rising order, each product
/// fused with the sum, values of 0 left out.
[[nodiscard]] Status run_transform_vectors(const TransformTables& tables, const TokenValues& values,
                                           float* out, StreamHandle stream);

}  // namespace kvcodec::cuda
