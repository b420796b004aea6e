// Where attention gets keys and values from: one key/value head whose tokens can be had one by one. A cache
// in memory is read in place; a codec serves the rows it is asked for, and decodes no other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// Rows that lie in memory as they are: row t begins stride_bytes behind row t - 1.
struct RowsInMemory {
  DType type = DType::f32;  ///< f32, f16 or bf16
  const std::byte* keys = nullptr;
  const std::byte* values = nullptr;
  size_t key_stride_bytes = 0, value_stride_bytes = 0;
};

/// One head's keys and values, (tokens, dims) each.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual size_t tokens() const = 0;
  virtual size_t dims() const = 0;

  /// Row i of keys and values, (ids.size(), dims) each, becomes that of token ids[i] < tokens(). May be
  /// called by several threads at a time.
  virtual void gather(std::span<const uint32_t> ids, MatrixView<float> keys,
                      MatrixView<float> values) const = 0;

  /// The rows themselves, if they need no decoding: they are then read where they are.
  virtual std::optional<RowsInMemory> in_memory() const { return std::nullopt; }
};

/// A cache in memory, which must outlive this. Views of one head of [T, H, d] are columns of (T, H * d).
class CacheRows final : public RowSource {
 public:
  /// keys, values: (tokens, dims). Throws Error(failed) if their shapes differ.
  CacheRows(MatrixView<const float> keys, MatrixView<const float> values);
  /// The same in f16 or bf16.
  CacheRows(DType type, MatrixView<const uint16_t> keys, MatrixView<const uint16_t> values);

  size_t tokens() const override { return tokens_; }
  size_t dims() const override { return dims_; }
  void gather(std::span<const uint32_t> ids, MatrixView<float> keys, MatrixView<float> values) const override;
  std::optional<RowsInMemory> in_memory() const override { return rows_; }

 private:
  size_t tokens_, dims_;
  RowsInMemory rows_;
};

}  // namespace kvcodec
