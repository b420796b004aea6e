// CUDA implementation of lib/attention/attention.hpp: attention of one decoding step over all tokens of a head or
// over chosen ones, of rows in floats or of coded rows, which are dequantized in registers (Self-Indexing
// KVCache, "sparse FlashAttention"). The sequence is split among the multiprocessors.
//
// The sums run in another order than lib's, the same in every run: results differ from lib's by rounding, as
// test/cuda/attention_test.cpp bounds it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cuda/attention/attention.cuh"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace kvcodec::cuda {

/// Keys and values of one head in device memory.
class DeviceRows {
 public:
  /// (tokens, dims) each, copied. Throws Error(failed) for shapes that do not fit and dims above 256.
  DeviceRows(MatrixView<const float> keys, MatrixView<const float> values);
  /// The same in f16 or bf16.
  DeviceRows(DType type, MatrixView<const uint16_t> keys, MatrixView<const uint16_t> values);

  size_t tokens() const { return tokens_; }
  size_t dims() const { return dims_; }
  RowKind kind() const { return kind_; }
  /// For launches.
  RowPointers pointers() const { return {keys_.data(), values_.data()}; }

 private:
  template <class T>
  DeviceRows(RowKind kind, MatrixView<const T> keys, MatrixView<const T> values);

  RowKind kind_;
  size_t tokens_, dims_;
  DeviceBuffer<uint8_t> keys_, values_;
};

/// Tokens of one head, as kvcodec::Attention names them.
struct AttentionPart {
  const DeviceRows* rows = nullptr;
  std::optional<std::span<const uint32_t>> tokens = std::nullopt;  ///< in host memory
  uint64_t visible = UINT64_MAX;
};

/// As kvcodec::Attention over several parts as one sequence; queries and out are in host memory.
struct Attention {
  MatrixView<const float> queries;
  std::vector<AttentionPart> parts;
  MatrixView<float> out;
  float scale = 0;
};

/// Bytes of device memory that queries of one head take beside rows, for so many tokens; about.
uint64_t attention_scratch_bytes(size_t queries, uint64_t tokens, size_t dims);

/// As kvcodec::attend.
void attend(std::span<const Attention> heads);
inline void attend(const Attention& head) { attend({&head, 1}); }

}  // namespace kvcodec::cuda
