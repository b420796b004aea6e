// Where attention gets keys and values from: one key/value head whose tokens can be had one by one. A cache
// in memory is read in place; a codec serves the rows it is asked for, and decodes no other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"
#include "lib/quant/two_bit.hpp"

namespace kvcodec {

/// Rows that lie in memory as they are: row t begins stride_bytes behind row t - 1.
struct RowsInMemory {
  DType type = DType::f32;  ///< f32, f16 or bf16
  const std::byte* keys = nullptr;
  const std::byte* values = nullptr;
  size_t key_stride_bytes = 0, value_stride_bytes = 0;
};

/// Rows as the selfindex codec stores them (lib/quant/two_bit.hpp), attended to without being decoded first:
/// key = center +- alpha * magnitude by channel, values plain.
struct TwoBitCache {
  MatrixView<const uint8_t> signs;  ///< (tokens, ceil(dims / 8)): sign bits, most significant bit first
  ConstTwoBitRows keys, values;
  std::span<const float> alpha, center;  ///< dims each
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

  /// The coded rows, if they are of that kind. Attention computes with them directly where dims() is a
  /// multiple of 32 and gathers them elsewhere.
  virtual std::optional<TwoBitCache> in_two_bits() const { return std::nullopt; }
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

/// Coded rows in memory, which must outlive this.
class TwoBitRowSource final : public RowSource {
 public:
  /// Throws Error(failed) if the parts do not fit together.
  explicit TwoBitRowSource(const TwoBitCache& cache);

  size_t tokens() const override { return cache_.signs.rows(); }
  size_t dims() const override { return cache_.alpha.size(); }
  void gather(std::span<const uint32_t> ids, MatrixView<float> keys, MatrixView<float> values) const override;
  std::optional<TwoBitCache> in_two_bits() const override { return cache_; }

 private:
  TwoBitCache cache_;
};

}  // namespace kvcodec
