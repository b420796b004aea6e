// Views that know their shape, and what lists need often. No function in lib/ takes a bare pointer and its length separately.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

namespace kvcodec {

/// A row-major matrix that the view does not own: rows x cols, row i starts at data + i * stride (stride >= cols).
template <class T>
class MatrixView {
 public:
  MatrixView() = default;
  MatrixView(T* data, size_t rows, size_t cols) : MatrixView(data, rows, cols, cols) {}
  MatrixView(T* data, size_t rows, size_t cols, size_t stride)
      : data_(data), rows_(rows), cols_(cols), stride_(stride) {}

  /// A view of mutable elements is also a view of constant ones.
  template <class U>
  requires std::is_same_v<T, const U> MatrixView(MatrixView<U> other)
      : MatrixView(other.data(), other.rows(), other.cols(), other.stride()) {}

  T* data() const { return data_; }
  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  size_t stride() const { return stride_; }
  bool contiguous() const { return stride_ == cols_ || rows_ <= 1; }

  std::span<T> row(size_t i) const { return {data_ + i * stride_, cols_}; }
  T& operator()(size_t i, size_t j) const { return data_[i * stride_ + j]; }

  /// Rows [first, first + count).
  MatrixView rows(size_t first, size_t count) const { return {at(first * stride_), count, cols_, stride_}; }
  /// Columns [first, first + count) of every row.
  MatrixView columns(size_t first, size_t count) const { return {at(first), rows_, count, stride_}; }

 private:
  /// Empty views may have no memory behind them.
  T* at(size_t offset) const { return data_ ? data_ + offset : nullptr; }

  T* data_ = nullptr;
  size_t rows_ = 0, cols_ = 0, stride_ = 0;
};

/// Row-major matrix that owns its elements, value-initialised.
template <class T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(size_t rows, size_t cols) : rows_(rows), cols_(cols), data_(rows * cols) {}

  T* data() { return data_.data(); }
  const T* data() const { return data_.data(); }
  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  size_t size() const { return data_.size(); }
  std::span<T> row(size_t i) { return {data() + i * cols_, cols_}; }
  std::span<const T> row(size_t i) const { return {data() + i * cols_, cols_}; }
  T& operator()(size_t i, size_t j) { return data_[i * cols_ + j]; }
  const T& operator()(size_t i, size_t j) const { return data_[i * cols_ + j]; }
  MatrixView<T> view() { return {data(), rows_, cols_}; }
  MatrixView<const T> view() const { return {data(), rows_, cols_}; }
  operator MatrixView<T>() { return view(); }
  operator MatrixView<const T>() const { return view(); }

 private:
  size_t rows_ = 0, cols_ = 0;
  std::vector<T> data_;
};

/// out(j, i) = in(i, j); in: (rows, cols), out: (cols, rows), apart from each other.
template <class T>
void transpose(MatrixView<const T> in, MatrixView<T> out) {
  constexpr size_t kTile = 16;  // a tile's rows and columns stay in the first-level cache and in few lines
  for (size_t i0 = 0; i0 < in.rows(); i0 += kTile)
    for (size_t j0 = 0; j0 < in.cols(); j0 += kTile)
      for (size_t j = j0; j < std::min(j0 + kTile, in.cols()); ++j)
        for (size_t i = i0; i < std::min(i0 + kTile, in.rows()); ++i) out(j, i) = in(i, j);
}

// Lists

/// 0, 1 .. count - 1.
template <class Number>
std::vector<Number> numbers_below(size_t count) {
  std::vector<Number> numbers(count);
  std::iota(numbers.begin(), numbers.end(), Number{0});
  return numbers;
}

/// Appends all elements of a list or view.
template <class T, class More>
void append_to(std::vector<T>& list, const More& more) {
  list.insert(list.end(), more.begin(), more.end());
}

}  // namespace kvcodec
