#include "lib/attention/row_source.hpp"

#include <cstring>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec {
namespace {

template <class T>
RowsInMemory rows_of(DType type, MatrixView<T> keys, MatrixView<T> values) {
  if (keys.rows() != values.rows() || keys.cols() != values.cols())
    throw failed("keys ({}, {}) and values ({}, {}) differ in shape", keys.rows(), keys.cols(), values.rows(),
                 values.cols());
  return {type, reinterpret_cast<const std::byte*>(keys.data()),
          reinterpret_cast<const std::byte*>(values.data()), keys.stride() * sizeof(T),
          values.stride() * sizeof(T)};
}

void read_row(DType type, const std::byte* row, std::span<float> out) {
  if (type == DType::f32)
    std::memcpy(out.data(), row, out.size_bytes());
  else
    widen(type, {reinterpret_cast<const uint16_t*>(row), out.size()}, out);
}

}  // namespace

CacheRows::CacheRows(MatrixView<const float> keys, MatrixView<const float> values)
    : tokens_(keys.rows()), dims_(keys.cols()), rows_(rows_of(DType::f32, keys, values)) {}

CacheRows::CacheRows(DType type, MatrixView<const uint16_t> keys, MatrixView<const uint16_t> values)
    : tokens_(keys.rows()), dims_(keys.cols()), rows_(rows_of(type, keys, values)) {
  if (type != DType::f16 && type != DType::bf16) throw failed("{} is not a 16-bit float", name_of(type));
}

TwoBitRowSource::TwoBitRowSource(const TwoBitCache& cache) : cache_(cache) {
  const size_t tokens = cache.signs.rows(), dims = cache.alpha.size();
  const auto fits = [&](const ConstTwoBitRows& rows) {
    return rows.levels.rows() == tokens && rows.scales.rows() == tokens && rows.zeros.rows() == tokens &&
           rows.levels.cols() == two_bit_row_bytes(dims) && rows.scales.cols() == two_bit_groups(dims) &&
           rows.zeros.cols() == two_bit_groups(dims);
  };
  if (!fits(cache.keys) || !fits(cache.values) || cache.signs.cols() != (dims + 7) / 8 ||
      cache.center.size() != dims)
    throw failed("the parts of coded rows do not fit {} tokens of {} dimensions", tokens, dims);
}

void TwoBitRowSource::gather(std::span<const uint32_t> ids, MatrixView<float> keys,
                             MatrixView<float> values) const {
  const ConstTwoBitRows& coded = cache_.values;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= tokens()) throw failed("token {} of {}", ids[i], tokens());
    dequantize_signed_row(cache_.keys, ids[i], cache_.signs.row(ids[i]), cache_.alpha, cache_.center,
                          keys.row(i));
    dequantize_two_bit(
        {coded.levels.rows(ids[i], 1), coded.scales.rows(ids[i], 1), coded.zeros.rows(ids[i], 1)},
        values.rows(i, 1));
  }
}

void CacheRows::gather(std::span<const uint32_t> ids, MatrixView<float> keys,
                       MatrixView<float> values) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= tokens_) throw failed("token {} of {}", ids[i], tokens_);
    read_row(rows_.type, rows_.keys + ids[i] * rows_.key_stride_bytes, keys.row(i));
    read_row(rows_.type, rows_.values + ids[i] * rows_.value_stride_bytes, values.row(i));
  }
}

}  // namespace kvcodec
