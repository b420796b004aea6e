// Rows of matrices that have a stride, as copies to and from a device need them: one behind the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "cuda/runtime/runtime.hpp"
#include "lib/core/view.hpp"

namespace kvcodec::cuda {

/// The rows of a matrix one behind the other: where they are, or, with a stride, copies of them. What is uploaded from
/// here must stay until the stream was synchronized.
template <class T>
class PackedRows {
 public:
  explicit PackedRows(MatrixView<const T> rows) : rows_(rows) {
    if (rows.contiguous()) return;
    copies_.reserve(rows.rows() * rows.cols());
    for (size_t i = 0; i < rows.rows(); ++i)
      copies_.insert(copies_.end(), rows.row(i).begin(), rows.row(i).end());
  }
  PackedRows(const PackedRows&) = delete;
  PackedRows& operator=(const PackedRows&) = delete;

  std::span<const T> values() const {
    return rows_.contiguous() ? std::span<const T>(rows_.data(), rows_.rows() * rows_.cols()) : copies_;
  }

 private:
  MatrixView<const T> rows_;
  std::vector<T> copies_;
};

/// Copies the rows of a matrix, which lie one behind the other; `stride` elements from one to the next.
template <class T>
void unpack(std::span<const T> values, size_t stride, MatrixView<T> rows) {
  for (size_t i = 0; i < rows.rows(); ++i)
    std::ranges::copy(values.subspan(i * stride, rows.cols()), rows.row(i).begin());
}

/// Copies all of a buffer to the rows of a matrix of as many elements, and waits for the stream.
template <class T>
void download_rows(const DeviceBuffer<T>& from, std::type_identity_t<MatrixView<T>> rows,
                   const Stream& stream) {
  std::vector<T> apart(rows.contiguous() ? 0 : from.size());
  from.download(rows.contiguous() ? std::span<T>(rows.data(), from.size()) : std::span<T>(apart), stream);
  stream.synchronize();
  if (!rows.contiguous()) unpack<T>(apart, rows.cols(), rows);
}

}  // namespace kvcodec::cuda
