// Launchers of the kernels of prefill.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

/// Floats as sums of bf16 (lib/core/half_bits.hpp): part p of element i is at
/// data[p * plane + i].
struct FloatParts {
  uint16_t* data = nullptr;
  size_t plane = 0;
};
inline constexpr unsigned kFloatParts = 3;

enum class RawFloat : uint8_t { f32, f16, bf16 };
/// Writes the first 1, 2 or 3 parts of `count` floats of this type. `raw` and `out` are aligned to their elements.
[[nodiscard]] Status run_split(RawFloat type, const void* raw, size_t count, unsigned parts,
                               const FloatParts& out, StreamHandle stream);

/// Rows to be RMS-normalised (rms_norm of lib/model), to `out` and `parts`, of which one may be null.
struct NormRows {
  const float* x = nullptr;  ///< (rows, width)
  size_t rows = 0;
  unsigned width = 0;
  const float* weight = nullptr;
  double epsilon = 0;
  float* out = nullptr;  ///< may be x
  FloatParts parts = {};
};
[[nodiscard]] Status run_norm_rows(const NormRows& norm, StreamHandle stream);

/// Each of `rows` rows of out = or += bias (width).
[[nodiscard]] Status run_bias(const float* bias, size_t rows, unsigned width, bool add, float* out,
                              StreamHandle stream);

/// silu(gate) * up, taken apart.
[[nodiscard]] Status run_silu(const float* gate, const float* up, size_t count, const FloatParts& out,
                              StreamHandle stream);

/// Heads after a projection, before attention.
struct HeadRows {
  float* rows = nullptr;         ///< (count, heads, dims); normalised and turned in place
  unsigned heads = 0, dims = 0;  ///< dims even, at most 256
  const float* norm = nullptr;   ///< (dims), or null: heads are not normalised
  double epsilon = 0;
  float* before = nullptr;         ///< like rows: values before they are turned; may be null
  const float* cosines = nullptr;  ///< (positions, dims / 2); null: not turned
  const float* sines = nullptr;
  const uint32_t* positions = nullptr;  ///< (count)
  float scale = 1;                      ///< of the parts
  FloatParts parts;                     ///< (rows, heads, padded), zeros behind dims
  unsigned padded = 0;
  const uint32_t* part_rows = nullptr;  ///< (count): destination of a row's parts; null: the same row
};
[[nodiscard]] Status run_place_heads(const HeadRows& heads, size_t count, StreamHandle stream);

/// Dimensions of a head among the parts: the smallest size that attention is compiled for.
constexpr unsigned attention_padded(unsigned dims) {
  return dims <= 32 ? 32 : dims <= 64 ? 64 : dims <= 128 ? 128 : 256;
}
/// Rows, of queries times heads, that a block of threads takes.
constexpr unsigned attention_rows(unsigned padded) { return padded <= 128 ? 128 : 64; }

/// Query tokens of one document that are computed together.
struct AttentionTile {
  uint32_t row;        ///< of the first token among query and out
  uint32_t key_first;  ///< row of the document's position 0 among keys and values
  uint32_t position;   ///< of the first token
  uint32_t tokens;     ///< at most attention_rows() / min(attention_rows(), heads of a group)
};

/// Causal attention, as causal_attention of lib/model.
struct CausalAttention {
  FloatParts query;       ///< (rows, q_heads, padded), scaled by 1 / sqrt(dims)
  FloatParts key, value;  ///< (key rows, kv_heads, padded)
  const AttentionTile* tiles = nullptr;
  unsigned tile_count = 0;
  unsigned q_heads = 0, kv_heads = 0, dims = 0, padded = 0;
  uint32_t window = 0;  ///< tokens that each sees, itself included; 0: all before it
  FloatParts out;       ///< (rows, q_heads * dims)
};
[[nodiscard]] Status run_causal_attention(const CausalAttention& attention, StreamHandle stream);

}  // namespace kvcodec::cuda
